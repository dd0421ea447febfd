# SPDX-License-Identifier: Apache-2.0
"""`stratagem.config`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from stratagem import config
from stratagem._core import env, state
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CPU_DEVICES, "")
    monkeypatch.setattr(state, "_connected", False)


def test_logical_cpu_devices_are_set_for_this_process_and_those_it_starts() -> None:
    config.set_logical_cpu_devices(3)
    assert env.cpu_devices() == 3
    assert os.environ[env.CPU_DEVICES] == "3"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0, ArgumentError, r"set_logical_cpu_devices\(0\) asks for less than one device"),
        ("2", ArgumentTypeError, r"set_logical_cpu_devices\('2'\) takes an int"),
        (True, ArgumentTypeError, r"set_logical_cpu_devices\(True\) takes an int"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        config.set_logical_cpu_devices(value)
    assert env.cpu_devices() is None


def test_it_is_too_late_once_a_strategy_is_in_use_unless_nothing_changes() -> None:
    config.set_logical_cpu_devices(2)
    state.mark_connected()
    assert state.connected()
    config.set_logical_cpu_devices(2)
    with pytest.raises(ContextError, match=r"set_logical_cpu_devices\(3\) comes too late: a strategy is in use"):
        config.set_logical_cpu_devices(3)
    state.mark_disconnected()
    config.set_logical_cpu_devices(3)
    assert env.cpu_devices() == 3
