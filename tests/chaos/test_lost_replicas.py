# SPDX-License-Identifier: Apache-2.0
"""Replicas that are killed, frozen or fail in the middle of things: the others end in time and say who it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.engines.torch import TorchEngine
from stratagem.engines.torch._gradients import GradientReducer
from stratagem.errors import CollectiveTimeoutError, ReplicaFailedError, StratagemError, WorkerLostError
from tests.contract.jobs import Outcome, RunJob
from tests.processes import script, started, stratagem

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

across_transports = pytest.mark.parametrize("transport", ["shared_memory", "process_group"])

REPLICAS = 3
VICTIM = 1
LIMIT_SECONDS = 3.0  # of a collective, where it has to run out
LONG_SECONDS = 20.0  # of a collective, where something else has to end it
SLACK_SECONDS = 5.0
PARAMETERS, NUMBERS, LAST_STEP = 8, 50_000, 3


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def freeze_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(LONG_SECONDS)  # called in a thread of its own, this runs on until the stop has reached it


def fail() -> None:
    raise ValueError("of its own")


def in_a_bucket_reduction(rank: int, lose: Callable[[], None]) -> None:
    """Train; in the last step's backward pass, with some buckets sent and some not, the victim is lost."""
    engine = TorchEngine()
    engine.connect(engine.local_devices())
    parameters = [torch.nn.Parameter(torch.ones(NUMBERS)) for _ in range(PARAMETERS)]
    reducer = GradientReducer(engine.transport, parameters, {}, bucket_bytes=4 * NUMBERS)
    for step in range(1, LAST_STEP + 1):
        reducer.start()
        loss = sum((parameter * parameter).sum() for parameter in parameters)
        assert isinstance(loss, torch.Tensor)
        if step == LAST_STEP and rank == VICTIM:
            parameters[PARAMETERS // 2].register_post_accumulate_grad_hook(lambda _: lose())
        loss.backward()
        gradients = reducer.finish()
        for gradient in gradients:
            assert gradient is not None
            assert torch.equal(gradient, torch.full((NUMBERS,), 2.0 * REPLICAS))


def in_a_collective(rank: int, lose: Callable[[], None]) -> None:
    engine = select.engine()
    engine.connect(engine.local_devices())
    engine.barrier("start")
    if rank == VICTIM:
        time.sleep(0.3)  # the others wait by now
        lose()
    engine.all_reduce(Reduction.SUM, [[torch.ones(3)]])


def in_handing_out(rank: int, lose: Callable[[], None]) -> None:
    """Take what the victim reads, which is lost while it reads the third item."""
    engine = select.engine()
    engine.connect(engine.local_devices())

    def items() -> Iterator[int]:
        yield from (1, 2)
        time.sleep(0.3)  # the others wait by now
        lose()

    for _ in engine.hand_out(items() if rank == VICTIM else None, VICTIM, "the next item", depth=1):
        pass


def killed_in_a_bucket_reduction(rank: int) -> None:
    in_a_bucket_reduction(rank, kill_self)


def frozen_in_a_bucket_reduction(rank: int) -> None:
    in_a_bucket_reduction(rank, freeze_self)


def failed_in_a_bucket_reduction(rank: int) -> None:
    in_a_bucket_reduction(rank, fail)


def killed_in_a_collective(rank: int) -> None:
    in_a_collective(rank, kill_self)


def frozen_in_a_collective(rank: int) -> None:
    in_a_collective(rank, freeze_self)


def killed_in_handing_out(rank: int) -> None:
    in_handing_out(rank, kill_self)


def frozen_in_handing_out(rank: int) -> None:
    in_handing_out(rank, freeze_self)


def others(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for rank, outcome in enumerate(outcomes) if rank != VICTIM]


def assert_named(outcome: Outcome, kind: type[StratagemError], text: str, place: str) -> None:
    assert type(outcome.error) is kind, outcome.text
    assert text in str(outcome.error)
    assert f"{place} at test_lost_replicas.py:" in str(outcome.error)


@across_transports
@pytest.mark.parametrize(
    ("program", "place"),
    [
        (killed_in_a_bucket_reduction, "the gradients"),
        (killed_in_a_collective, "in all_reduce(SUM) of float32[3]"),
        (killed_in_handing_out, f"in taking the next item from replica {VICTIM}"),
    ],
)
def test_a_killed_replica_is_named_at_once(
    run_job: RunJob, transport: str, program: Callable[[int], None], place: str
) -> None:
    outcomes = run_job(program, REPLICAS, transport, LONG_SECONDS)
    assert outcomes[VICTIM].signal == signal.SIGKILL
    for outcome in others(outcomes):
        assert outcome.seconds < LONG_SECONDS / 2
        text = str(outcome.error)
        assert f"the process of replica {VICTIM} (pid " in text
        assert_named(outcome, WorkerLostError, "died while replica ", place_with_step(text, place))


@across_transports
@pytest.mark.parametrize(
    ("program", "place"),
    [
        (frozen_in_a_bucket_reduction, "the gradients"),
        (frozen_in_a_collective, "in all_reduce(SUM) of float32[3]"),
        (frozen_in_handing_out, f"in taking the next item from replica {VICTIM}"),
    ],
)
def test_a_frozen_replica_is_named_within_the_limit(
    run_job: RunJob, transport: str, program: Callable[[int], None], place: str
) -> None:
    outcomes = run_job(program, REPLICAS, transport, LIMIT_SECONDS)
    for outcome in others(outcomes):
        assert outcome.seconds < LIMIT_SECONDS + SLACK_SECONDS
        place_here = place_with_step(str(outcome.error), place)
        assert_named(
            outcome, CollectiveTimeoutError, f"for replica {VICTIM} of {REPLICAS}: replica {VICTIM} is", place_here
        )


@across_transports
def test_a_replica_that_fails_in_its_backward_pass_is_named(run_job: RunJob, transport: str) -> None:
    outcomes = run_job(failed_in_a_bucket_reduction, REPLICAS, transport, LONG_SECONDS)
    assert "of its own" in outcomes[VICTIM].text
    for outcome in others(outcomes):
        assert outcome.seconds < LONG_SECONDS / 2
        place = place_with_step(str(outcome.error), "the gradients")
        assert_named(outcome, ReplicaFailedError, "the program of replica ", place)
    # One of them may have learnt it from the other.
    assert any(f"of replica {VICTIM} failed" in str(outcome.error) for outcome in others(outcomes))


def killed_before_it_connects(rank: int) -> None:
    if rank == VICTIM:
        kill_self()
    select.engine().connect([f"CPU:{index}" for index in range(REPLICAS)])


@across_transports
def test_a_replica_killed_before_it_connects_is_named_within_the_limit(run_job: RunJob, transport: str) -> None:
    for outcome in others(run_job(killed_before_it_connects, REPLICAS, transport, 1.0)):
        assert outcome.seconds < 1.0 + SLACK_SECONDS
        assert type(outcome.error) is CollectiveTimeoutError
        assert f"for replica {VICTIM} of {REPLICAS} to enter its strategy's scope" in str(outcome.error)


PROGRAM = """
import torch
from stratagem.engines import select
from stratagem._core.enums import Reduction

engine = select.engine()
engine.connect(engine.local_devices())
if engine.rank == 0:
    engine.all_reduce(Reduction.SUM, [[torch.ones(3)]])
"""


def test_a_program_whose_replica_ends_early_fails_with_the_reason(tmp_path: Path) -> None:
    name = script(tmp_path, PROGRAM)
    with started(stratagem("run", "--cpu-devices", "2", name), tmp_path) as program:
        _, err = program.process.communicate(timeout=50)
        program.leaves_nothing(within_seconds=2)
    assert program.process.returncode == 1
    assert "replica 0 waits in all_reduce(SUM) of float32[3] at script.py:9, but the program of replica 1 has" in err
    assert "[replica 0/2] Traceback (most recent call last):" in err, "with one prefix only"


def place_with_step(text: str, place: str) -> str:
    """`place`, with the number of the step where the transport tells it."""
    return f"{place} of step {LAST_STEP}" if f"{place} of step" in text else place
