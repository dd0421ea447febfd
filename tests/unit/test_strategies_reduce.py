# SPDX-License-Identifier: Apache-2.0
"""strategy.reduce and strategy.gather against numpy, for any number of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stratagem as distribute
from stratagem.engines import select
from stratagem.errors import ArgumentError, ArgumentTypeError, StructureMismatchError
from stratagem.testing.fake_engine import FakeEngine


@pytest.fixture(autouse=True)
def fake_engine() -> Iterator[FakeEngine]:
    with select.use(FakeEngine(4)) as engine:
        yield engine


def mirrored(replicas: int) -> distribute.MirroredStrategy:
    return distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])


def values_of(strategy: distribute.MirroredStrategy, parts: list[Any]) -> Any:
    return strategy.experimental_distribute_values_from_function(lambda c: parts[c.replica_id_in_sync_group])


@pytest.fixture
def two() -> distribute.MirroredStrategy:
    return mirrored(2)


@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=4), dtype=st.sampled_from([np.float32, np.int32, np.int64])
)
def test_reducing_over_rows_equals_one_device(rows: list[int], dtype: Any) -> None:
    with select.use(FakeEngine(4)):
        strategy = mirrored(len(rows))
        whole = np.arange(sum(rows) * 3).reshape(-1, 3).astype(dtype)
        value = values_of(strategy, np.split(whole, np.cumsum(rows)[:-1]))
        total = strategy.reduce("SUM", value, axis=0)
        assert total.dtype == dtype
        np.testing.assert_array_equal(total, whole.sum(axis=0))
        np.testing.assert_array_equal(strategy.gather(value, axis=0), whole)
        if sum(rows):
            mean = strategy.reduce("MEAN", value, axis=(0, 1))
            np.testing.assert_allclose(mean, whole.mean(), rtol=1e-6)
            assert mean.dtype == (np.float64 if np.issubdtype(dtype, np.integer) else dtype)


@given(replicas=st.integers(1, 4), op=st.sampled_from(["SUM", "MEAN"]))
def test_reducing_over_replicas_alone(replicas: int, op: str) -> None:
    with select.use(FakeEngine(4)):
        strategy = mirrored(replicas)
        parts = [np.full((2, 3), n + 1, np.float32) for n in range(replicas)]
        value = values_of(strategy, parts)
        expected = np.sum(parts, axis=0) if op == "SUM" else np.mean(parts, axis=0)
        result = strategy.reduce(op, {"x": [value], "y": value}, axis=None)
        np.testing.assert_allclose(result["x"][0], expected)
        np.testing.assert_allclose(result["y"], expected)


def test_everything_goes_in_one_message(two: distribute.MirroredStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    engine = two.extended.engine
    original = engine.all_reduce
    monkeypatch.setattr(engine, "all_reduce", lambda op, values: calls.append(len(values[0])) or original(op, values))
    value = two.run(lambda: np.float32([1, 2]))
    two.reduce("MEAN", [value, {"a": value}], axis=0)
    two.reduce("SUM", [value, {"a": value}], axis=None)
    two.extended.batch_reduce_to("SUM", [(value, "CPU:0"), (value, "CPU:0")])
    assert calls == [4, 2, 2]  # a mean also sends its counts


def test_a_mean_of_what_is_equal_everywhere_is_itself(two: distribute.MirroredStrategy) -> None:
    value = object()
    assert two.reduce("MEAN", value, axis=None) is value
    assert two.gather(value, axis=0) is value
    np.testing.assert_array_equal(two.reduce("SUM", np.float32([1, 2]), axis=0), 6)


@pytest.mark.parametrize(
    ("op", "value", "axis", "error", "text"),
    [
        ("MAX", 1.0, None, ArgumentError, "'MAX' is neither SUM nor MEAN"),
        (3, 1.0, None, ArgumentError, "3 is neither SUM nor MEAN"),
        ("SUM", 3.0, None, ArgumentError, "was given 3.0, which is not a value per replica"),
        ("MEAN", None, None, ArgumentError, "was given None, which is not a value per replica"),
        ("SUM", np.zeros(50), None, ArgumentError, "was given a ndarray, which is not a value per replica"),
        (
            "SUM",
            [np.float32(1)] * 2,
            0,
            ArgumentError,
            r"was given axis=0 for a value of shape \(\)\n  fix: use axis=None",
        ),
        (
            "SUM",
            [np.ones(2)] * 2,
            1,
            ArgumentError,
            r"axis=1 for a value of shape \(2,\)\n  fix: use an axis from -1 to 0",
        ),
        ("MEAN", [np.ones(2)] * 2, (0, -2), ArgumentError, "axis=-2 for a value of shape"),
        ("SUM", [np.ones(2)] * 2, "0", ArgumentTypeError, "strategy.reduce was given axis='0'"),
        ("SUM", [np.ones(2)] * 2, (), ArgumentTypeError, r"strategy.reduce was given axis=\(\)"),
        ("SUM", [np.ones(2)] * 2, True, ArgumentTypeError, "strategy.reduce was given axis=True"),
        ("SUM", [True, False], None, ArgumentTypeError, r"strategy.reduce was given a bool of shape \(\)"),
        ("SUM", ["a", "b"], None, ArgumentTypeError, "strategy.reduce was given 'a'"),
        ("SUM", [np.array(["a"])] * 2, 0, ArgumentTypeError, "strategy.reduce was given array"),
        ("SUM", [None, 1.0], None, ArgumentTypeError, "strategy.reduce was given None"),
        (
            "SUM",
            [np.ones(1), np.ones(2)],
            None,
            StructureMismatchError,
            r"replica 0: \(1,\) float64, replica 1: \(2,\)",
        ),
        ("SUM", [object(), object()], None, ArgumentTypeError, "can't be made into a tensor"),
    ],
)
def test_what_cannot_be_reduced(
    two: distribute.MirroredStrategy, op: Any, value: Any, axis: Any, error: type[Exception], text: str
) -> None:
    if isinstance(value, list):
        value = values_of(two, value)
    with pytest.raises(error, match=text):
        two.reduce(op, value, axis=axis)


@pytest.mark.parametrize(
    ("parts", "axis", "error", "text"),
    [
        ([np.float32(1)] * 2, 0, ArgumentError, r"axis=0 for a value of shape \(\)\n  fix: give it one dimension"),
        ([np.ones(1)] * 2, 1, ArgumentError, "fix: use an axis from -1 to 0"),
        ([np.ones(1)] * 2, "0", ArgumentTypeError, "strategy.gather was given axis='0'"),
        (
            [np.ones((2, 2)), np.ones((1, 3))],
            0,
            StructureMismatchError,
            r"replica 0: \(2, 2\) float64, replica 1: \(1, 3\)",
        ),
        ([np.ones(1), np.ones((1, 1))], 0, StructureMismatchError, "along axis 0 of values that differ elsewhere too"),
        ([np.array(["a"])] * 2, 0, ArgumentTypeError, "strategy.gather was given array"),
    ],
)
def test_what_cannot_be_gathered(
    two: distribute.MirroredStrategy, parts: list[Any], axis: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        two.gather(values_of(two, parts), axis=axis)


def test_a_value_per_replica_inside_a_replica_is_refused(two: distribute.MirroredStrategy) -> None:
    value = values_of(two, [1.0, 2.0])
    with pytest.raises(ArgumentTypeError, match="all_reduce was given a PerReplica inside a replica function"):
        two.run(lambda: distribute.get_replica_context().all_reduce("SUM", value))  # type: ignore[union-attr]


def test_replicas_that_give_different_numbers_of_values(two: distribute.MirroredStrategy) -> None:
    def uneven() -> Any:
        context: Any = distribute.get_replica_context()
        return context.all_reduce("SUM", [1.0] * (1 + context.replica_id_in_sync_group))

    with pytest.raises(StructureMismatchError, match=r"replicas gave different numbers of values: \[1, 2\]"):
        two.run(uneven)


def test_reduce_to_places_the_result(two: distribute.MirroredStrategy) -> None:
    value = values_of(two, [np.float32(1), np.float32(2)])
    mirrored_result = two.extended.reduce_to(distribute.ReduceOp.SUM, value, destinations=value)
    assert type(mirrored_result).__name__ == "Mirrored"
    assert [float(each) for each in mirrored_result.values] == [3.0, 3.0]
    assert float(two.extended.reduce_to("MEAN", value, destinations="CPU:0")) == 1.5
    assert float(mirrored(1).extended.reduce_to("SUM", np.float32(4), value)) == 4.0
    assert float(mirrored(1).extended.broadcast_to(4.0, value)) == 4.0
