# SPDX-License-Identifier: Apache-2.0
"""A collective that not every replica calls: an error in time that names both sides, and never a wrong number."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import torch

import stratagem
from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.engines.torch import TorchEngine
from stratagem.engines.torch._gradients import GradientReducer
from stratagem.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    ReplicaFailedError,
    StratagemError,
    StructureMismatchError,
)
from tests.contract.jobs import Outcome, RunJob

pytestmark = [pytest.mark.timeout(60), pytest.mark.parametrize("transport", ["shared_memory", "process_group"])]

LIMIT_SECONDS = 3.0
SLACK_SECONDS = 5.0
LONG_SECONDS = 20.0  # where something else than the limit has to end it


def replica() -> Any:
    return stratagem.get_replica_context()


def assert_in_time(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.signal is None
        assert outcome.seconds < LIMIT_SECONDS + SLACK_SECONDS


def error_of(outcome: Outcome, kind: type[StratagemError], *texts: str) -> None:
    """The replica raised `kind`, with all `texts` in it, in this order."""
    assert type(outcome.error) is kind, outcome.text
    at = 0
    for text in texts:
        at = str(outcome.error).find(text, at)
        assert at >= 0, f"{text!r} not in {outcome.error}"


def reduce_on_replica_0_inside_run(rank: int) -> object:
    strategy = stratagem.MirroredStrategy()

    def step() -> object:
        return replica().all_reduce("SUM", torch.ones(2)) if rank == 0 else torch.ones(2)

    return strategy.reduce("SUM", strategy.run(step), axis=None).tolist()


def merge_on_replica_0(rank: int) -> object:
    strategy = stratagem.MirroredStrategy()

    def merge(strategy: Any, value: Any) -> object:
        return strategy.reduce("SUM", value, axis=None)

    def step() -> object:
        return replica().merge_call(merge, args=(torch.ones(2),)) if rank == 0 else torch.ones(2)

    return strategy.reduce("SUM", strategy.run(step), axis=None).tolist()


@pytest.mark.parametrize("program", [reduce_on_replica_0_inside_run, merge_on_replica_0])
def test_a_collective_inside_run_does_not_meet_an_equal_one_outside(
    run_job: RunJob, transport: str, program: Any
) -> None:
    outcomes = run_job(program, 2, transport, LIMIT_SECONDS)
    assert_in_time(outcomes)
    for outcome in outcomes:
        error_of(
            outcome,
            CollectiveMismatchError,
            "replica 0 called all_reduce(SUM) of float32[2] at test_one_sided.py:",
            "in call 1 of strategy.run, while replica 1 called all_reduce(SUM) of float32[2] at test_one_sided.py:",
        )


def skip_a_step_on_replica_1(rank: int) -> object:
    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        weight = keras.Variable([1.0, 1.0])
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])

    def step(number: int) -> None:
        if (rank, number) != (1, 2):  # as a program does that skips a batch whose loss is not finite
            optimizer.apply([torch.full((2,), float(number))])

    for number in range(1, 5):
        strategy.run(step, args=(number,))
    return weight.numpy().tolist()


def test_an_update_skipped_by_one_replica_does_not_meet_the_next_step(run_job: RunJob, transport: str) -> None:
    outcomes = run_job(skip_a_step_on_replica_1, 2, transport, LIMIT_SECONDS)
    assert_in_time(outcomes)
    for outcome in outcomes:
        error_of(
            outcome,
            CollectiveMismatchError,
            "replica 0 called all_gather_object",
            "at test_one_sided.py:",
            "in call 2 of strategy.run, while replica 1 called all_gather_object",
            "at test_one_sided.py:",
            "in call 3 of strategy.run",
        )


def end_on_replica_1(rank: int) -> None:
    strategy = stratagem.MirroredStrategy()
    strategy.run(lambda: replica().all_reduce("SUM", 1.0) if rank == 0 else 1.0)


def test_report_41_an_extra_reduce_names_its_line_and_the_program_that_has_ended(
    run_job: RunJob, transport: str
) -> None:
    first, second = run_job(end_on_replica_1, 2, transport, LONG_SECONDS)
    assert second.error is None
    assert first.seconds < LONG_SECONDS / 2
    error_of(
        first,
        CollectiveMismatchError,
        "replica 0 waits in all_reduce(SUM) of float32[] at test_one_sided.py:",
        "in call 1 of strategy.run, but the program of replica 1 has ended",
    )


def raise_on_replica_1(rank: int) -> None:
    strategy = stratagem.MirroredStrategy()

    def step() -> None:
        if rank == 1:
            raise ValueError("of its own")
        replica().all_reduce("SUM", 1.0)

    strategy.run(step)


def test_a_program_that_fails_inside_run_is_named_by_who_waits_for_it(run_job: RunJob, transport: str) -> None:
    first, second = run_job(raise_on_replica_1, 2, transport, LONG_SECONDS)
    assert "of its own" in second.text
    assert first.seconds < LONG_SECONDS / 2
    error_of(first, ReplicaFailedError, "the program of replica 1 failed while replica 0 waited in all_reduce(SUM)")


def idle_on_replica_1(rank: int) -> None:
    import time

    engine = select.engine()
    engine.connect(engine.local_devices())
    engine.barrier("start")
    if rank == 1:
        time.sleep(LIMIT_SECONDS + 1)
        return
    engine.all_reduce(Reduction.SUM, [[torch.ones(3)]])


def test_report_41_a_replica_that_does_something_else_is_named_with_what_it_did_last_and_its_number(
    run_job: RunJob, transport: str
) -> None:
    first, _ = run_job(idle_on_replica_1, 2, transport, LIMIT_SECONDS)
    assert LIMIT_SECONDS <= first.seconds < LIMIT_SECONDS + SLACK_SECONDS
    error_of(
        first,
        CollectiveTimeoutError,
        "replica 0 waited 3 seconds in all_reduce(SUM) of float32[3] at test_one_sided.py:",
        "for replica 1 of 2: replica 1 is ",
        "barrier('start') at test_one_sided.py:",
        "its collective 2 (this is number 3)",
        "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS",
    )


def sum_gradients_on_replica_0(rank: int) -> None:
    engine = TorchEngine()
    engine.connect(engine.local_devices())
    weight = torch.nn.Parameter(torch.ones(2))
    reducer = GradientReducer(engine.transport, [weight], {})
    if rank == 1:
        engine.all_reduce(Reduction.SUM, [[torch.ones(3)]])
        return
    reducer.start()
    weight.sum().backward()
    reducer.finish()


def test_gradients_and_a_collective_wait_for_each_other_in_vain_and_say_so(run_job: RunJob, transport: str) -> None:
    outcomes = run_job(sum_gradients_on_replica_0, 2, transport, LIMIT_SECONDS)
    assert_in_time(outcomes)
    sides = ("the gradients", "all_reduce(SUM) of float32[3]")
    for rank, outcome in enumerate(outcomes):
        kind = type(outcome.error)
        # Whoever comes last may find that the other has given up.
        assert kind in (CollectiveTimeoutError, ReplicaFailedError), outcome.text
        error_of(outcome, kind, f"in {sides[rank]}", "at test_one_sided.py:")
    late = [outcome for outcome in outcomes if type(outcome.error) is CollectiveTimeoutError]
    # The first to give up still finds the other waiting; the second may find that it has ended.
    assert any(all(side in str(outcome.error) for side in sides) for outcome in late), [o.text for o in outcomes]


def make_different_models(rank: int) -> None:
    engine = TorchEngine()
    engine.connect(engine.local_devices())
    GradientReducer(engine.transport, [torch.nn.Parameter(torch.ones(5, 5 + rank))], {"loss": (torch.float32, (2,))})


def test_replicas_with_different_models_learn_so_before_they_sum_gradients(run_job: RunJob, transport: str) -> None:
    for rank, outcome in enumerate(run_job(make_different_models, 2, transport, LONG_SECONDS)):
        assert outcome.seconds < LONG_SECONDS / 2
        error_of(
            outcome,
            StructureMismatchError,
            f"replica {rank} wants to sum 1 gradients of {25 + 5 * rank} numbers, and loss [2]",
            "at test_one_sided.py:",
            f"but replica {1 - rank} wants to sum 1 gradients of {30 - 5 * rank} numbers",
        )


def fit_on_replica_0(rank: int) -> None:
    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        model: Any = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if rank == 0:
        model.fit(torch.ones(4, 2), torch.ones(4, 1), verbose=0)


def test_a_fit_on_one_replica_only_ends_with_an_error(run_job: RunJob, transport: str) -> None:
    first, second = run_job(fit_on_replica_0, 2, transport, LONG_SECONDS)
    assert second.error is None
    assert first.seconds < LONG_SECONDS / 2
    error_of(first, CollectiveMismatchError, "replica 0 waits in", "but the program of replica 1 has ended")


def save_on_replica_0(rank: int) -> None:
    strategy = stratagem.MirroredStrategy()
    with strategy.scope():

        class Counting(keras.layers.Layer):
            """Has a variable that only all replicas together can read."""

            def __init__(self) -> None:
                super().__init__()
                self.seen = stratagem.Variable(
                    0.0,
                    synchronization=stratagem.VariableSynchronization.ON_READ,
                    aggregation=stratagem.VariableAggregation.SUM,
                )

            def call(self, x: Any) -> Any:
                return x

        model: Any = keras.Sequential([keras.Input((2,)), Counting(), keras.layers.Dense(1)])
    if rank == 0:
        model.save_weights("/nowhere/model.weights.h5")


def test_report_35_the_chief_does_not_wait_for_others_to_save_what_only_all_together_can_read(
    run_job: RunJob, transport: str
) -> None:
    first, second = run_job(save_on_replica_0, 2, transport, LONG_SECONDS)
    assert second.error is None
    assert first.seconds < 5.0
    error_of(
        first,
        CollectiveMismatchError,
        "replica 0 waits in all_reduce(SUM) of float32[] at test_one_sided.py:",
        "but the program of replica 1 has ended",
    )
