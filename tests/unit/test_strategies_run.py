# SPDX-License-Identifier: Apache-2.0
"""strategy.run, and what replicas do together inside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stratagem as distribute
from stratagem._core import contexts, env
from stratagem.engines import select
from stratagem.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    ContextError,
    ReplicaFailedError,
    StructureMismatchError,
)
from stratagem.testing.fake_engine import FakeEngine


@pytest.fixture(autouse=True)
def fake_engine() -> Iterator[FakeEngine]:
    with select.use(FakeEngine(3)) as engine:
        yield engine


@pytest.fixture
def strategy() -> distribute.MirroredStrategy:
    return distribute.MirroredStrategy()


def here() -> Any:
    return distribute.get_replica_context()


def replica() -> int:
    return here().replica_id_in_sync_group


def test_each_replica_gets_its_own_arguments(strategy: distribute.MirroredStrategy) -> None:
    own = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group * 10)
    result = strategy.run(lambda a, *, b: a + b["x"][0], args=[own], kwargs={"b": {"x": (1,)}})
    assert result.values == (1, 11, 21)


def test_a_replica_knows_itself(strategy: distribute.MirroredStrategy) -> None:
    devices = strategy.run(lambda: here().devices[0]).values
    assert devices == strategy.extended.worker_devices
    assert "replica 2 of 3" in strategy.run(lambda: repr(here())).values[2]
    assert strategy.run(lambda: here().strategy is strategy).values == (True,) * 3


def test_an_error_of_one_replica_is_raised_as_it_is(strategy: distribute.MirroredStrategy) -> None:
    class Own(Exception):
        pass

    def fail() -> object:
        if replica() == 1:
            raise Own("from replica 1")
        return here().all_reduce("SUM", 1.0)

    with pytest.raises(Own, match="from replica 1"):
        strategy.run(fail)
    assert contexts.current() is None


def test_the_others_learn_why_they_wait_in_vain(strategy: distribute.MirroredStrategy) -> None:
    seen: list[BaseException] = []

    def fail() -> object:
        if replica() == 1:
            raise KeyError("gone")
        try:
            return here().all_reduce("SUM", 1.0)
        except ReplicaFailedError as error:
            seen.append(error)
            raise

    with pytest.raises(KeyError, match="gone"):
        strategy.run(fail)
    assert len(seen) == 2
    assert "waits in all_reduce, but replica 1 raised KeyError('gone') without it" in str(seen[0])


def test_a_collective_on_one_replica_only_names_both_sides(strategy: distribute.MirroredStrategy) -> None:
    with pytest.raises(CollectiveMismatchError, match=r"replica 0 waits in all_reduce, but replica [12] returned"):
        strategy.run(lambda: here().all_reduce("SUM", 1.0) if replica() == 0 else None)


def test_different_collectives_name_both(strategy: distribute.MirroredStrategy) -> None:
    with pytest.raises(CollectiveMismatchError, match=r"replica \d called all_\w+ where replica \d called all_\w+"):
        strategy.run(lambda: here().all_reduce("SUM", 1.0) if replica() else here().all_gather(np.ones(1), axis=0))


def test_a_slow_replica_is_waited_for_until_the_limit(
    strategy: distribute.MirroredStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "collective_timeout_seconds", lambda: 0.2)

    def slow() -> object:
        if replica() == 2:
            time.sleep(0.6)
        return here().all_reduce("SUM", 1.0)

    with pytest.raises(
        CollectiveTimeoutError, match=r"replicas \[2\] did not reach all_reduce in 0.2 seconds; there: \[0, 1\]"
    ):
        strategy.run(slow)


def test_many_rounds_keep_their_values_apart(strategy: distribute.MirroredStrategy) -> None:
    def rounds() -> list[float]:
        return [float(here().all_reduce("SUM", float(replica() + n))) for n in range(50)]

    expected = [3.0 * n + 3.0 for n in range(50)]
    assert [value.values[0] for value in strategy.run(rounds)] == expected


def test_merge_call_acts_once_for_all(strategy: distribute.MirroredStrategy) -> None:
    calls: list[Any] = []

    def merge(merged: Any, value: Any, *, scale: int) -> Any:
        calls.append((merged, distribute.in_cross_replica_context(), here(), scale))
        total = merged.reduce("SUM", value, axis=None)
        return {"own": value, "total": total}

    result = strategy.run(lambda: here().merge_call(merge, args=(replica() + 1,), kwargs={"scale": 2}))
    assert result["own"].values == (1, 2, 3)
    assert [int(total) for total in result["total"].values] == [6, 6, 6]
    assert len(calls) == 1
    assert calls[0][0] is strategy
    assert calls[0][1:3] == (True, None)


def test_an_error_in_merge_call_reaches_all(strategy: distribute.MirroredStrategy) -> None:
    with pytest.raises(ZeroDivisionError):
        strategy.run(lambda: here().merge_call(lambda _: 1 // 0))


def test_replicas_that_return_different_structures_are_named(strategy: distribute.MirroredStrategy) -> None:
    with pytest.raises(
        StructureMismatchError, match="replicas 0 and 1 returned values that don't fit together"
    ) as caught:
        strategy.run(lambda: [1] if replica() == 0 else [1, 2])
    assert "return the same structure" in str(caught.value)


def test_run_inside_run_is_refused(strategy: distribute.MirroredStrategy) -> None:
    with pytest.raises(ContextError, match=r"run\(\) was called inside a function that strategy.run\(\) runs"):
        strategy.run(lambda: strategy.run(lambda: 1))
    with pytest.raises(ContextError, match=r"reduce\(\) was called inside .*\n.*all_reduce"):
        strategy.run(lambda: strategy.reduce("SUM", 1.0, axis=None))
    with pytest.raises(ContextError, match=r"gather\(\) was called inside .*\n.*all_gather"):
        strategy.run(lambda: strategy.gather(np.ones(1), axis=0))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"fn": 3}, ArgumentTypeError, "strategy.run was given 3, not a function"),
        ({"args": 1.0}, ArgumentError, "strategy.run was given args of type float"),
        ({"kwargs": [1]}, ArgumentTypeError, "strategy.run was given kwargs of type list"),
        ({"options": {}}, ArgumentTypeError, "strategy.run was given options={}"),
    ],
)
def test_arguments_are_checked(
    strategy: distribute.MirroredStrategy, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        strategy.run(**({"fn": lambda: 1} | arguments))


def test_run_options_are_accepted(strategy: distribute.MirroredStrategy) -> None:
    assert strategy.run(lambda: 1, options=distribute.RunOptions()).values == (1, 1, 1)


def test_all_reduce_leaves_none_alone(strategy: distribute.MirroredStrategy) -> None:
    result = strategy.run(lambda: here().all_reduce("MEAN", {"a": None, "b": float(replica())}))
    assert result["a"] is None
    assert [float(value) for value in result["b"].values] == [1.0, 1.0, 1.0]
    assert strategy.run(lambda: here().all_reduce("SUM", [])) == []


def test_communication_options(strategy: distribute.MirroredStrategy, caplog: pytest.LogCaptureFixture) -> None:
    options = distribute.experimental.CommunicationOptions(timeout_seconds=5)
    with caplog.at_level(logging.WARNING, "stratagem"):
        strategy.run(lambda: here().all_reduce("SUM", 1.0, options=options))
    assert "CommunicationOptions.timeout_seconds=5 has no effect on a single collective" in caplog.text
    with pytest.raises(ArgumentTypeError, match="options=3 is not a CommunicationOptions"):
        strategy.run(lambda: here().all_reduce("SUM", 1.0, options=3))


def test_a_context_does_not_outlive_its_function(strategy: distribute.MirroredStrategy) -> None:
    kept = strategy.run(here).values[0]
    for call in (
        lambda: kept.all_reduce("SUM", 1.0),
        lambda: kept.all_gather(np.ones(1), axis=0),
        lambda: kept.merge_call(lambda _: 1),
    ):
        with pytest.raises(ContextError, match="was called outside the replica function"):
            call()


def test_values_from_a_function(strategy: distribute.MirroredStrategy) -> None:
    make = strategy.experimental_distribute_values_from_function
    assert make(lambda c: (c.replica_id_in_sync_group, c.num_replicas_in_sync))[1].values == (3, 3, 3)
    with pytest.raises(ContextError, match=r"experimental_distribute_values_from_function\(\) was called inside"):
        strategy.run(lambda: make(lambda _: 1))
    single = distribute.MirroredStrategy(["CPU:0"])
    assert single.experimental_distribute_values_from_function(lambda _: None).values == (None,)
    assert distribute.OneDeviceStrategy("CPU:0").experimental_distribute_values_from_function(lambda _: 7) == 7


def test_local_results(strategy: distribute.MirroredStrategy) -> None:
    own = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group)
    assert strategy.experimental_local_results([own, "same"]) == ([0, "same"], [1, "same"], [2, "same"])
    assert strategy.experimental_local_results(5) == (5,)


def test_one_replica_gives_bare_values() -> None:
    for single in (distribute.MirroredStrategy(["CPU:1"]), distribute.OneDeviceStrategy("CPU:1")):
        assert single.run(lambda: {"a": replica(), "b": None}) == {"a": 0, "b": None}
        assert single.run(lambda: here().merge_call(lambda _, x: x + 1, args=(1,))) == 2
        with pytest.raises(ZeroDivisionError):
            single.run(lambda: 1 // 0)
