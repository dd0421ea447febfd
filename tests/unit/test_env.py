# SPDX-License-Identifier: Apache-2.0
"""What is read from the environment, and what is said of a value that makes no sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratagem._core import env
from stratagem.errors import ArgumentError


def test_a_process_outside_a_job_has_no_place() -> None:
    assert env.job({}) is None
    assert env.job({"STRATAGEM_JOB_DIR": "/x"}) is None


def test_a_process_of_a_job_knows_its_place() -> None:
    environ = {"STRATAGEM_RANK": "1", "STRATAGEM_WORLD_SIZE": "2", "STRATAGEM_JOB_DIR": "/x"}
    assert env.job(environ) == env.Job(rank=1, world_size=2, directory=Path("/x"))


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"STRATAGEM_RANK": "0"}, "only some of STRATAGEM_RANK, STRATAGEM_WORLD_SIZE and STRATAGEM_JOB_DIR are set"),
        ({"STRATAGEM_RANK": "0", "STRATAGEM_WORLD_SIZE": "2"}, "only some of"),
        (
            {"STRATAGEM_RANK": "2", "STRATAGEM_WORLD_SIZE": "2", "STRATAGEM_JOB_DIR": "/x"},
            r"STRATAGEM_RANK=2 does not lie in 0\.\.1 \(STRATAGEM_WORLD_SIZE=2\)",
        ),
        (
            {"STRATAGEM_RANK": "first", "STRATAGEM_WORLD_SIZE": "2", "STRATAGEM_JOB_DIR": "/x"},
            "STRATAGEM_RANK='first' is not a whole number",
        ),
    ],
    ids=str,
)
def test_a_place_that_makes_no_sense_is_refused(environ: dict[str, str], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        env.job(environ)


@pytest.mark.parametrize(
    ("read", "name", "unset", "text", "value"),
    [
        (env.cpu_devices, "STRATAGEM_CPU_DEVICES", None, "3", 3),
        (env.replicas, "STRATAGEM_REPLICAS", None, "3", 3),
        (env.collective_timeout_seconds, "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS", 300.0, "1.5", 1.5),
        (env.fast_paths, "STRATAGEM_FAST_PATHS", True, "0", False),
        (env.transport, "STRATAGEM_TRANSPORT", "auto", "process_group", "process_group"),
        (env.keras_backend, "KERAS_BACKEND", None, "jax", "jax"),
    ],
)
def test_a_variable_is_read_each_time_and_empty_means_unset(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], object], name: str, unset: object, text: str, value: object
) -> None:
    monkeypatch.delenv(name, raising=False)
    assert read() == unset
    monkeypatch.setenv(name, "")
    assert read() == unset
    monkeypatch.setenv(name, text)
    assert read() == value
    assert env.inherited()[name] == text


@pytest.mark.parametrize(
    ("read", "name", "text", "says"),
    [
        (env.cpu_devices, "STRATAGEM_CPU_DEVICES", "0", "STRATAGEM_CPU_DEVICES=0 is not a positive number"),
        (env.cpu_devices, "STRATAGEM_CPU_DEVICES", "2.0", "STRATAGEM_CPU_DEVICES='2.0' is not a whole number"),
        (env.replicas, "STRATAGEM_REPLICAS", "-1", "STRATAGEM_REPLICAS=-1 is not a positive number"),
        (
            env.collective_timeout_seconds,
            "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS",
            "soon",
            "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS='soon' is not a positive number of seconds",
        ),
        (env.fast_paths, "STRATAGEM_FAST_PATHS", "yes", "STRATAGEM_FAST_PATHS='yes' is neither 0 nor 1"),
        (env.transport, "STRATAGEM_TRANSPORT", "pigeon", "STRATAGEM_TRANSPORT='pigeon' is not one of auto, "),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], object], name: str, text: str, says: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ArgumentError, match=says):
        read()
