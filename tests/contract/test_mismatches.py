# SPDX-License-Identifier: Apache-2.0
"""Replicas that don't call the same collective: an error on all of them alike, and the job goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.errors import CollectiveMismatchError, StratagemError, StructureMismatchError
from tests.contract.jobs import Outcome, RunJob

pytestmark = pytest.mark.timeout(60)

TRANSPORTS = ("shared_memory", "process_group")
Call = Callable[[Engine], object]


# Each call is one line, which the error must name.
def sum_of_3(engine: Engine) -> object:
    return engine.all_reduce(Reduction.SUM, [[torch.ones(3)]])


def mean_of_3(engine: Engine) -> object:
    return engine.all_reduce(Reduction.MEAN, [[torch.ones(3)]])


def sum_of_4(engine: Engine) -> object:
    return engine.all_reduce(Reduction.SUM, [[torch.ones(4)]])


def sum_of_3_by_1(engine: Engine) -> object:
    return engine.all_reduce(Reduction.SUM, [[torch.ones(3, 1)]])


def sum_of_integers(engine: Engine) -> object:
    return engine.all_reduce(Reduction.SUM, [[torch.ones(3, dtype=torch.int64)]])


def sum_of_2_tensors(engine: Engine) -> object:
    return engine.all_reduce(Reduction.SUM, [[torch.ones(3), torch.ones(3)]])


def sum_of_no_tensor(engine: Engine) -> object:
    return engine.all_reduce(Reduction.SUM, [[]])


def gather_rows(engine: Engine) -> object:
    return engine.all_gather([[torch.ones(3, 2)]], axis=0)


def gather_columns(engine: Engine) -> object:
    return engine.all_gather([[torch.ones(3, 2)]], axis=1)


def gather_longer_rows(engine: Engine) -> object:
    return engine.all_gather([[torch.ones(3, 7)]], axis=0)


def gather_cubes(engine: Engine) -> object:
    return engine.all_gather([[torch.ones(3, 2, 1)]], axis=0)


def gather_objects(engine: Engine) -> object:
    return engine.all_gather_objects(["x" * 1000])


def send_from_0(engine: Engine) -> object:
    return engine.broadcast([[torch.ones(3)]], source=0)


def send_from_1(engine: Engine) -> object:
    return engine.broadcast([[torch.ones(3)]], source=1)


def wait_for_a(engine: Engine) -> object:
    return engine.barrier("a")


def wait_for_b(engine: Engine) -> object:
    return engine.barrier("b")


def step_backwards(engine: Engine) -> object:
    return torch.autograd.backward(backwards.pop())


backwards: list[torch.Tensor] = []


@dataclass(frozen=True)
class Mismatch:
    """What all replicas but the last call, what the last one calls, and what of each must be named."""

    most: Call
    last: Call
    error: type[StratagemError]
    named: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.most.__name__}-{self.last.__name__}"


MISMATCHES = (
    Mismatch(sum_of_3, mean_of_3, CollectiveMismatchError, ("all_reduce(SUM)", "all_reduce(MEAN)")),
    Mismatch(sum_of_3, gather_rows, CollectiveMismatchError, ("all_reduce(SUM)", "all_gather(axis=0)")),
    Mismatch(gather_objects, sum_of_3, CollectiveMismatchError, ("all_gather_object", "all_reduce(SUM)")),
    Mismatch(gather_rows, gather_columns, CollectiveMismatchError, ("axis=0", "axis=1")),
    Mismatch(send_from_0, send_from_1, CollectiveMismatchError, ("broadcast(source=0)", "broadcast(source=1)")),
    Mismatch(wait_for_a, wait_for_b, CollectiveMismatchError, ("barrier('a')", "barrier('b')")),
    Mismatch(wait_for_a, sum_of_3, CollectiveMismatchError, ("barrier('a')", "all_reduce(SUM)")),
    Mismatch(sum_of_3, step_backwards, CollectiveMismatchError, ("float32[3]", "float32[5]")),
    Mismatch(sum_of_3, sum_of_4, StructureMismatchError, ("float32[3]", "float32[4]")),
    Mismatch(sum_of_3, sum_of_3_by_1, StructureMismatchError, ("float32[3]", "float32[3, 1]")),
    Mismatch(sum_of_3, sum_of_integers, StructureMismatchError, ("float32[3]", "int64[3]")),
    Mismatch(sum_of_3, sum_of_2_tensors, StructureMismatchError, ("float32[3]", "float32[3], float32[3]")),
    Mismatch(sum_of_no_tensor, sum_of_3, StructureMismatchError, ("no tensor", "float32[3]")),
    Mismatch(gather_rows, gather_longer_rows, StructureMismatchError, ("float32[3, 2]", "float32[3, 7]")),
    Mismatch(gather_rows, gather_cubes, StructureMismatchError, ("float32[3, 2]", "float32[3, 2, 1]")),
)


def make_all_mismatches(rank: int) -> dict[str, StratagemError]:
    """The error of each mismatch; between them, the job must still work. Runs in a replica's process."""
    engine = select.engine()
    engine.connect(engine.local_devices())
    errors: dict[str, StratagemError] = {}
    for mismatch in MISMATCHES:
        x = torch.ones(5, requires_grad=True)
        backwards[:] = [engine.all_reduce(Reduction.MEAN, [[x]])[0][0].sum()]
        try:
            (mismatch.last if rank == engine.num_replicas - 1 else mismatch.most)(engine)
        except StratagemError as error:
            errors[str(mismatch)] = error
        assert float(engine.all_reduce(Reduction.SUM, [[torch.ones(())]])[0][0]) == engine.num_replicas
    return errors


@pytest.fixture(scope="module")
def found(run_job: RunJob) -> Callable[[str], list[Outcome]]:
    outcomes: dict[str, list[Outcome]] = {}

    def of(transport: str) -> list[Outcome]:
        if transport not in outcomes:
            outcomes[transport] = run_job(make_all_mismatches, 3, transport, timeout_seconds=3)
        return outcomes[transport]

    return of


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mismatch", MISMATCHES, ids=str)
def test_report_41_all_replicas_raise_the_same_error_that_names_both_sides_and_lines_and_the_job_goes_on(
    found: Callable[[str], list[Outcome]], mismatch: Mismatch, transport: str
) -> None:
    outcomes = found(transport)
    for outcome in outcomes:
        assert outcome.error is None, outcome.text
    errors = [outcome.value[str(mismatch)] for outcome in outcomes]
    assert {str(error) for error in errors} == {str(errors[0])}
    assert {type(error) for error in errors} == {mismatch.error}
    problem = errors[0].problem
    sides = ((0, mismatch.most, mismatch.named[0]), (2, mismatch.last, mismatch.named[1]))
    for replica, call, named in sides:
        line = f"test_mismatches.py:{inspect.getsourcelines(call)[1] + 1}"
        start = problem.index(f"replica {replica}")
        assert named in problem[start:]
        assert line in problem[start:]


def take_one_more_on_the_last_replica(rank: int) -> None:
    engine = select.engine()
    engine.connect(engine.local_devices())
    items = engine.hand_out(iter(range(9)) if rank == 0 else None, 0, "the next item", depth=2)
    for _ in range(3 if rank == engine.num_replicas - 1 else 2):
        next(items)
    sum_of_3(engine)


def test_a_replica_that_has_taken_one_more_batch_is_told_at_the_next_collective(run_job: RunJob) -> None:
    for outcome in run_job(take_one_more_on_the_last_replica, 3, "shared_memory", timeout_seconds=3):
        assert type(outcome.error) is CollectiveMismatchError, outcome.text
        assert "replica 0 called all_reduce(SUM) of float32[3] at test_mismatches.py:" in str(outcome.error)
        assert " after 2 batches, while replica 2 called all_reduce(SUM)" in str(outcome.error)
        assert " after 3\n" in str(outcome.error)


def use_different_devices(rank: int) -> None:
    engine = select.engine()
    engine.connect(["CPU:0", "CPU:1"] if rank == 0 else ["CPU:1", "CPU:0"])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_replicas_that_use_different_devices_learn_so_when_they_connect(run_job: RunJob, transport: str) -> None:
    for outcome in run_job(use_different_devices, 2, transport, timeout_seconds=3):
        assert type(outcome.error).__name__ == "JobMismatchError"
        assert "['CPU:0', 'CPU:1'], but replica" in str(outcome.error) or "['CPU:1', 'CPU:0'], but" in str(
            outcome.error
        )


def connect_on_replica_0(rank: int) -> None:
    if rank == 0:
        select.engine().connect(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_replica_that_nobody_else_joins_names_whom_it_waited_for(run_job: RunJob, transport: str) -> None:
    error = run_job(connect_on_replica_0, 2, transport, timeout_seconds=1)[0].error
    assert type(error).__name__ == "CollectiveTimeoutError"
    assert "replica 0 waited 1 seconds for replica 1 of 2 to enter its strategy's scope" in str(error)
