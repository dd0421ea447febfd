# SPDX-License-Identifier: Apache-2.0
"""Processes of a jax job that don't call the same collective: an error on all of them alike, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.errors import (
    CollectiveMismatchError,
    JobMismatchError,
    LaunchError,
    StratagemError,
    StructureMismatchError,
)
from stratagem.testing import ReplicaPool

pytestmark = pytest.mark.timeout(120)

PROCESSES = 3
# What a process can call; each as a line of this file, which errors name.
CALLS: dict[str, Callable[[Any, Any], object]] = {
    "sum of 3": lambda engine, np: engine.all_reduce(Reduction.SUM, columns(engine, np.ones(3, np.float32))),
    "mean of 3": lambda engine, np: engine.all_reduce(Reduction.MEAN, columns(engine, np.ones(3, np.float32))),
    "sum of 4": lambda engine, np: engine.all_reduce(Reduction.SUM, columns(engine, np.ones(4, np.float32))),
    "sum of integers": lambda engine, np: engine.all_reduce(Reduction.SUM, columns(engine, np.ones(3, np.int32))),
    "sum of nothing": lambda engine, np: engine.all_reduce(Reduction.SUM, columns(engine)),
    "rows": lambda engine, np: engine.all_gather(columns(engine, np.ones((3, 2), np.float32)), axis=0),
    "longer rows": lambda engine, np: engine.all_gather(columns(engine, np.ones((3, 7), np.float32)), axis=0),
    "columns": lambda engine, np: engine.all_gather(columns(engine, np.ones((3, 2), np.float32)), axis=1),
    "from 0": lambda engine, np: engine.broadcast(columns(engine, np.ones(3, np.float32)), source=0),
    "from 1": lambda engine, np: engine.broadcast(columns(engine, np.ones(3, np.float32)), source=1),
    "objects": lambda engine, np: engine.all_gather_objects(["x" * 1000] * len(engine.local_replica_ids)),
    "barrier a": lambda engine, np: engine.barrier("a"),
    "barrier b": lambda engine, np: engine.barrier("b"),
}
MISMATCHES = (
    ("sum of 3", "mean of 3", CollectiveMismatchError, "all_reduce(SUM)", "all_reduce(MEAN)"),
    ("sum of 3", "rows", CollectiveMismatchError, "all_reduce(SUM)", "all_gather(axis=0)"),
    ("objects", "sum of 3", CollectiveMismatchError, "all_gather_object", "all_reduce(SUM)"),
    ("rows", "columns", CollectiveMismatchError, "axis=0", "axis=1"),
    ("from 0", "from 1", CollectiveMismatchError, "broadcast(source=0)", "broadcast(source=1)"),
    ("barrier a", "barrier b", CollectiveMismatchError, "barrier('a')", "barrier('b')"),
    ("sum of 3", "sum of 4", StructureMismatchError, "float32[3]", "float32[4]"),
    ("sum of 3", "sum of integers", StructureMismatchError, "float32[3]", "int32[3]"),
    ("sum of nothing", "sum of 3", StructureMismatchError, "no tensor", "float32[3]"),
    ("rows", "longer rows", StructureMismatchError, "float32[3, 2]", "float32[3, 7]"),
)


def columns(engine: Any, *arrays: Any) -> list[list[Any]]:
    """The same arrays for each local replica."""
    return [[engine.to_tensor(array) for array in arrays] for _ in engine.local_replica_ids]


def make_all_mismatches() -> list[StratagemError | None]:
    """The error of each mismatch; between them, the job must still work. Runs in a process of the job."""
    import numpy as np

    engine = select.engine()
    engine.connect(engine.local_devices())
    errors: list[StratagemError | None] = []
    for most, last, *_ in MISMATCHES:
        errors.append(None)
        try:
            CALLS[last if engine.rank == PROCESSES - 1 else most](engine, np)
        except StratagemError as error:
            errors[-1] = error
        total = engine.all_reduce(Reduction.SUM, columns(engine, np.float32(1)))[0][0]
        assert float(total) == engine.num_replicas
    return errors


@pytest.fixture(scope="module")
def pool() -> Iterator[ReplicaPool]:
    limit = {"STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS": "30"}
    with ReplicaPool(replicas=2 * PROCESSES, backend="jax", processes=PROCESSES, env=limit) as job:
        yield job


@pytest.fixture(scope="module")
def found(pool: ReplicaPool) -> list[list[StratagemError | None]]:
    return pool.run(make_all_mismatches)


@pytest.mark.parametrize("number", range(len(MISMATCHES)), ids=lambda n: "-".join(MISMATCHES[n][:2]))
def test_report_41_all_processes_raise_the_same_error_that_names_both_sides(
    found: list[list[StratagemError | None]], number: int
) -> None:
    _, _, kind, first, last = MISMATCHES[number]
    errors = [mine[number] for mine in found]
    assert {type(error) for error in errors} == {kind}
    assert {str(error) for error in errors} == {str(errors[0])}
    text = str(errors[0])
    # Replicas 0 to 3 are those of the first two processes.
    start, middle = text.index("replica 0"), text.index("replica 4")
    assert first in text[start:middle]
    assert last in text[middle:]
    assert text.count("test_jax_mismatches.py:") == 2


def use_other_devices(how: str) -> str:
    engine = select.engine()
    engine.disconnect()
    devices = list(engine.local_devices())
    if how == "order" and engine.rank == 1:
        devices = devices[::-1]
    if how == "one":
        devices = devices[:1]
    try:
        engine.connect(devices)
    except StratagemError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("order", JobMismatchError, "uses the devices ['CPU:"),
        ("one", LaunchError, "the devices ['CPU:0'] give the 3 processes of this job [1, 0, 0] replicas"),
    ],
)
def test_devices_that_do_not_fit_the_job_are_refused_when_a_process_connects(
    pool: ReplicaPool, how: str, kind: type[StratagemError], text: str
) -> None:
    for said in pool.run(use_other_devices, how):
        assert said.startswith(kind.__name__)
        assert text in said
