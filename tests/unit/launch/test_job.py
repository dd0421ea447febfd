# SPDX-License-Identifier: Apache-2.0
"""Processes that can't be started."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from stratagem.errors import LaunchError
from stratagem.launch import place, plan, supervise

PLACEMENT = place(replicas=1, cpu_devices=None, backend="torch", environ={}, gpus=0)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_folder_that_is_not_there_is_named_and_nothing_is_left(tmp_path: Path, temporary: Path) -> None:
    absent = str(tmp_path / "absent")
    with pytest.raises(LaunchError, match=f"process 0 of the job could not be started: .*{absent}"):
        supervise(plan([sys.executable], PLACEMENT, environ={}, cores=1, directory=absent), {})
    assert list(temporary.iterdir()) == []


def test_an_interpreter_that_is_gone_is_named_and_nothing_is_left(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LaunchError, match=f"no process could be started: .*{tmp_path / 'python'}"):
        supervise(plan(["python"], PLACEMENT, environ={}, cores=1), {})
    assert list(temporary.iterdir()) == []
