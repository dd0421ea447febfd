# SPDX-License-Identifier: Apache-2.0
"""What engines/base.py promises, one function each; run in every process of a job, for all of its local replicas.

Each starts from what a replica has by its id, and knows from the ids alone what must come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from stratagem._core.enums import Reduction
from stratagem.engines.base import Engine
from stratagem.errors import ArgumentTypeError, ReplicaFailedError, StructureMismatchError
from stratagem.testing.fake_engine import FakeVariable

Promise = Callable[[Engine], None]
PROMISES: dict[str, Promise] = {}
MEGABYTES = 1024 * 1024


def promise(function: Promise) -> Promise:
    """Enter a promise into the table under its name."""
    PROMISES[function.__name__] = function
    return function


def each(engine: Engine, make: Callable[[int], Sequence[Any]]) -> list[list[Any]]:
    """Per local replica, what `make(replica id)` lists, as tensors."""
    return [[engine.to_tensor(np.asarray(value)) for value in make(replica)] for replica in engine.local_replica_ids]


def reduced(engine: Engine, op: Reduction, make: Callable[[int], Any]) -> list[np.ndarray]:
    """`all_reduce` of one value per replica; what each local replica got."""
    results = engine.all_reduce(op, each(engine, lambda replica: [make(replica)]))
    assert len(results) == len(engine.local_replica_ids)
    return [np.asarray(column[0]) for column in results]


def assert_all(results: Sequence[np.ndarray], expected: Any, *, rtol: float = 0.0) -> None:
    """Each local replica has `expected`, dtype and shape included."""
    expected = np.asarray(expected)
    for result in results:
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=0)


def everyone(engine: Engine, make: Callable[[int], Any]) -> np.ndarray:
    """What all replicas have, stacked."""
    return np.stack([np.asarray(make(replica)) for replica in range(engine.num_replicas)])


@promise
def a_numpy_scalar_keeps_its_dtype(engine: Engine) -> None:
    for scalar in (np.float64(1.5), np.float32(1.5), np.int64(3), np.bool_(True)):
        assert np.asarray(engine.to_tensor(scalar)) == scalar
        assert np.asarray(engine.to_tensor(scalar)).dtype == scalar.dtype


@promise
def replicas_are_numbered_from_0_and_each_lives_in_one_process(engine: Engine) -> None:
    everyones = engine.all_gather_objects(list(engine.local_replica_ids))
    assert sorted(everyones) == list(range(engine.num_replicas))
    assert engine.rank >= 0


@promise
def there_is_a_device_for_each_replica(engine: Engine) -> None:
    assert len(engine.local_devices()) >= engine.num_replicas
    assert set(engine.local_devices()) <= set(engine.all_devices())


@promise
def connecting_again_to_the_same_devices_changes_nothing(engine: Engine) -> None:
    before = engine.local_replica_ids
    engine.connect(engine.local_devices())
    assert engine.local_replica_ids == before
    assert_all(reduced(engine, Reduction.SUM, lambda _: np.float32(1)), np.float32(engine.num_replicas))


@promise
def all_reduce_of_floats_is_numpys(engine: Engine) -> None:
    for dtype in (np.float16, np.float32, np.float64):

        def make(replica: int, dtype: Any = dtype) -> np.ndarray:
            return np.arange(6, dtype=dtype).reshape(2, 3) - dtype(2.5) * dtype(replica)

        parts = everyone(engine, make)
        assert_all(reduced(engine, Reduction.SUM, make), parts.sum(0, dtype=dtype))
        assert_all(reduced(engine, Reduction.MEAN, make), parts.mean(0, dtype=dtype), rtol=1e-3)
        assert_all(reduced(engine, Reduction.MIN, make), parts.min(0))
        assert_all(reduced(engine, Reduction.MAX, make), parts.max(0))


@promise
def integers_are_summed_exactly_beyond_the_reach_of_floats(engine: Engine) -> None:
    for dtype, base in ((np.int32, 2**24 + 1), (np.int64, 2**53 + 1)):

        def make(replica: int, dtype: Any = dtype, base: int = base) -> np.ndarray:
            return np.array([base + 2 * replica, -base], dtype)

        parts = everyone(engine, make)
        assert_all(reduced(engine, Reduction.SUM, make), parts.sum(0, dtype=dtype))
        assert_all(reduced(engine, Reduction.MIN, make), parts.min(0))
        assert_all(reduced(engine, Reduction.MAX, make), parts.max(0))


@promise
def the_mean_of_integers_is_float64_and_does_not_overflow(engine: Engine) -> None:
    for dtype, value in ((np.uint8, 200), (np.int32, 2**31 - 1), (np.int64, 2**40 + 1)):

        def make(replica: int, dtype: Any = dtype, value: int = value) -> np.ndarray:
            return np.array([value, replica], dtype)

        assert_all(reduced(engine, Reduction.MEAN, make), everyone(engine, make).astype(np.float64).mean(0), rtol=1e-15)


@promise
def bools_are_refused(engine: Engine) -> None:
    for op in Reduction:
        with pytest.raises(ArgumentTypeError, match=r"bool.* can't be reduced with"):
            engine.all_reduce(op, each(engine, lambda _: [np.array([True])]))
    engine.barrier("after a refusal")


@promise
def empty_tensors_and_no_tensors_reduce_to_themselves(engine: Engine) -> None:
    results = engine.all_reduce(Reduction.SUM, each(engine, lambda _: [np.zeros((0, 3), np.float32), np.float32(1)]))
    for empty, one in results:
        assert tuple(empty.shape) == (0, 3)
        assert float(one) == engine.num_replicas
    assert [len(column) for column in engine.all_reduce(Reduction.SUM, each(engine, lambda _: []))] == [
        0 for _ in results
    ]


@promise
def many_tensors_of_several_dtypes_travel_together_and_come_back_in_order(engine: Engine) -> None:
    dtypes = (np.float32, np.int64, np.float64)

    def make(replica: int) -> list[np.ndarray]:
        return [np.full((n % 3, 2), n + replica, dtypes[n % 3]) for n in range(300)]

    parts = [make(replica) for replica in range(engine.num_replicas)]
    for column in engine.all_reduce(Reduction.SUM, each(engine, make)):
        assert len(column) == 300
        for n, result in enumerate(column):
            assert_all([np.asarray(result)], sum(part[n] for part in parts))


@promise
def there_can_be_thousands_of_tensors(engine: Engine) -> None:
    for column in engine.all_reduce(Reduction.MAX, each(engine, lambda replica: [np.int32(replica)] * 5000)):
        assert {int(result) for result in column} == {engine.num_replicas - 1}


@promise
def large_tensors_and_then_small_ones_arrive_whole(engine: Engine) -> None:
    for size in (1, 3 * MEGABYTES // 4, 5 * MEGABYTES // 4, 10, 4 * MEGABYTES // 4, 2):

        def make(replica: int, size: int = size) -> np.ndarray:
            return np.arange(size, dtype=np.float32) % 1000 * (replica + 1)

        factor = sum(replica + 1 for replica in range(engine.num_replicas))
        assert_all(reduced(engine, Reduction.SUM, make), np.arange(size, dtype=np.float32) % 1000 * factor)


@promise
def inputs_are_not_written_to_and_results_stay_as_they_are(engine: Engine) -> None:
    values = each(engine, lambda replica: [np.full(5, replica + 1.0, np.float32)])
    total = sum(range(1, engine.num_replicas + 1))
    first = [column[0] for column in engine.all_reduce(Reduction.SUM, values)]
    gathered = [column[0] for column in engine.all_gather(values, axis=0)]
    sent = [column[0] for column in engine.broadcast(values)]
    for number in range(4):  # what comes next must not show in what came before
        engine.all_reduce(Reduction.SUM, each(engine, lambda _, number=number: [np.full(5, 99.0 + number, np.float32)]))
    assert_all([np.asarray(result) for result in first], np.full(5, total, np.float32))
    assert_all([np.asarray(result) for result in sent], np.ones(5, np.float32))
    expected = np.repeat(np.arange(1, engine.num_replicas + 1, dtype=np.float32), 5)
    assert_all([np.asarray(result) for result in gathered], expected)
    for replica, column in zip(engine.local_replica_ids, values, strict=True):
        assert_all([np.asarray(column[0])], np.full(5, replica + 1.0, np.float32))


@promise
def tensors_that_do_not_lie_in_order_are_reduced_by_their_places(engine: Engine) -> None:
    plain = np.arange(12, dtype=np.float32).reshape(3, 4)
    values = [[column[0].swapaxes(0, 1)] for column in each(engine, lambda _: [plain])]
    for column in engine.all_reduce(Reduction.SUM, values):
        assert_all([np.asarray(column[0])], plain.T * np.float32(engine.num_replicas))


@promise
def a_mean_of_one_nan_is_nan_on_every_replica(engine: Engine) -> None:
    last = engine.num_replicas - 1
    for op in (Reduction.SUM, Reduction.MEAN, Reduction.MIN, Reduction.MAX):
        for result in reduced(engine, op, lambda replica: np.float32(np.nan if replica == last else 1)):
            assert np.isnan(result)


@promise
def all_gather_takes_different_numbers_of_rows(engine: Engine) -> None:
    def make(replica: int) -> np.ndarray:
        return np.full((replica, 2), replica, np.int32)  # replica 0 has none

    expected = np.concatenate([make(replica) for replica in range(engine.num_replicas)])
    for column in engine.all_gather(each(engine, lambda replica: [make(replica), make(2 * replica)]), axis=0):
        assert_all([np.asarray(column[0])], expected)
        assert len(column[1]) == 2 * len(expected)


@promise
def all_gather_works_along_any_axis_and_for_any_dtype(engine: Engine) -> None:
    for dtype in (np.bool_, np.uint8, np.float16, np.float64):

        def make(replica: int, dtype: Any = dtype) -> np.ndarray:
            return np.full((2, replica + 1, 3), replica % 2, dtype)

        expected = np.concatenate([make(replica) for replica in range(engine.num_replicas)], axis=1)
        for axis in (1, -2):
            for column in engine.all_gather(each(engine, lambda replica: [make(replica)]), axis=axis):
                assert_all([np.asarray(column[0])], expected)


@promise
def all_gather_refuses_what_differs_along_other_axes(engine: Engine) -> None:
    if engine.num_replicas == 1:
        return
    with pytest.raises(StructureMismatchError, match="replica"):
        engine.all_gather(each(engine, lambda replica: [np.zeros((2, 3 + replica), np.float32)]), axis=0)
    engine.barrier("after a refusal")


@promise
def objects_come_in_replica_order(engine: Engine) -> None:
    given = [{"replica": replica, "text": "x" * (1000 * replica)} for replica in engine.local_replica_ids]
    everyones = engine.all_gather_objects(given)
    assert isinstance(everyones, tuple)
    assert [(one["replica"], len(one["text"])) for one in everyones] == [
        (replica, 1000 * replica) for replica in range(engine.num_replicas)
    ]


@promise
def each_process_brings_one_object_and_any_process_may_be_taken_from(engine: Engine) -> None:
    everyones = engine.all_processes_objects(engine.local_replica_ids)
    assert [replica for ids in everyones for replica in ids] == list(range(engine.num_replicas))
    for source in range(engine.num_replicas):
        assert source in engine.take_object(engine.local_replica_ids, source, "the replicas of a process")


@promise
def items_that_one_process_reads_come_in_order_and_its_error_after_them(engine: Engine) -> None:
    sizes = (3, 100_000, 0, 50_000, 1_000_000, 5)
    last = engine.num_replicas - 1
    for source in (0, last):
        reads = source in engine.local_replica_ids
        for depth in (0, 1, 3):

            def items(depth: int = depth) -> Iterator[Any]:
                for size in sizes:
                    yield {"numbers": np.full(size, size, np.float32), "text": "x" * depth}
                raise KeyError("a row is missing")

            found = engine.hand_out(items() if reads else None, source, "the next row", depth)
            for size in sizes:
                item = next(found)
                assert item["text"] == "x" * depth
                assert_all([item["numbers"]], np.full(size, size, np.float32))
            with pytest.raises(KeyError if reads else ReplicaFailedError, match="a row is missing"):
                next(found)


@promise
def of_items_that_are_handed_out_some_may_be_left_and_two_sequences_read_at_once(engine: Engine) -> None:
    for depth in (0, 2):

        def opened(depth: int = depth) -> Iterator[int]:
            return engine.hand_out(iter(range(9)) if engine.rank == 0 else None, 0, "the next number", depth)

        begun = opened()
        assert next(begun) == 0
        del begun
        assert list(zip(opened(), opened(), strict=True)) == [(number, number) for number in range(9)]


@promise
def an_item_that_cannot_be_sent_is_an_error_of_its_own(engine: Engine) -> None:
    if len(engine.local_replica_ids) == engine.num_replicas:
        return  # sent to nobody
    reads = engine.rank == 0
    for depth in (0, 2):
        found = engine.hand_out(iter([1, lambda: None]) if reads else None, 0, "the next item", depth)
        assert next(found) == 1
        with pytest.raises(Exception if reads else ReplicaFailedError, match="<lambda>"):
            next(found)


@promise
def broadcast_gives_what_any_one_replica_has(engine: Engine) -> None:
    for source in range(engine.num_replicas):
        values = each(engine, lambda replica: [np.full(3, replica, np.float32), np.array(replica, np.int64)])
        for row, number in engine.broadcast(values, source):
            assert_all([np.asarray(row)], np.full(3, source, np.float32))
            assert_all([np.asarray(number)], np.int64(source))


@promise
def barriers_let_everyone_through(engine: Engine) -> None:
    for number in range(20):
        engine.barrier(f"barrier {number}")


@promise
def functions_run_on_each_local_replica_with_its_own_arguments(engine: Engine) -> None:
    count = len(engine.local_replica_ids)
    args = [(number,) for number in range(count)]
    kwargs = [{"plus": 10 * number} for number in range(count)]
    results = engine.run_on_replicas(lambda number, *, plus: number + plus, args, kwargs)
    assert results == tuple(11 * number for number in range(count))


@promise
def numbers_arrays_and_tensors_become_tensors(engine: Engine) -> None:
    for value, dtype in ((1, np.int32), (1.5, np.float32), (True, np.bool_), (np.arange(3.0), np.float64)):
        tensor = engine.to_tensor(value)
        assert engine.is_tensor(tensor)
        assert np.asarray(tensor).dtype == dtype
        np.testing.assert_array_equal(np.asarray(engine.to_tensor(tensor)), value)
    assert not engine.is_tensor([1.0])
    for value in ("text", object(), None):
        with pytest.raises(ArgumentTypeError):
            engine.to_tensor(value)


def variable(engine: Engine, value: Any) -> Any:
    """A variable as the engine's users have them."""
    if engine.name == "fake":
        return FakeVariable(np.asarray(value))
    import keras

    return keras.Variable(value, trainable=np.issubdtype(np.asarray(value).dtype, np.floating))


@promise
def value_and_grad_gives_the_value_and_the_gradients(engine: Engine) -> None:
    x, y = variable(engine, np.array([1.0, -2.0], np.float32)), variable(engine, np.array([3.0, 0.5], np.float32))

    def function(factor: float, *, plus: float) -> Any:
        return (x.value * x.value * y.value * factor).sum() + plus

    value, gradients = engine.value_and_grad(function, [x, y])(2.0, plus=1.0)
    assert float(value) == pytest.approx(11.0)
    np.testing.assert_allclose(np.asarray(gradients[0]), [12.0, -4.0], rtol=1e-2)
    np.testing.assert_allclose(np.asarray(gradients[1]), [2.0, 8.0], rtol=1e-2)


@promise
def value_and_grad_passes_more_results_on(engine: Engine) -> None:
    x = variable(engine, np.array([2.0], np.float32))
    both = engine.value_and_grad(lambda: ((x.value * x.value).sum(), "more"), [x], has_aux=True)
    (value, more), (gradient,) = both()
    assert (float(value), more) == (4.0, "more")
    np.testing.assert_allclose(np.asarray(gradient), [4.0], rtol=1e-2)


@promise
def restore_puts_back_what_snapshot_took(engine: Engine) -> None:
    variables = [variable(engine, np.array([1.0, 2.0], np.float32)), variable(engine, np.array([3], np.int64))]
    saved = engine.snapshot(variables)
    for one in variables:
        one.assign(one.value * 10)
    kept = [np.asarray(value).copy() for value in saved]
    engine.restore(variables, saved)
    for one, value in zip(variables, kept, strict=True):
        now = one.value.detach() if engine.name == "torch" else one.value
        assert_all([np.asarray(now)], value)
    np.testing.assert_array_equal(kept[0], [1.0, 2.0])


@promise
def who_leaves_the_job_is_alone_and_may_leave_again(engine: Engine) -> None:
    engine.disconnect()
    engine.disconnect()
    assert engine.num_replicas == 1
    assert_all(reduced(engine, Reduction.SUM, lambda _: np.float32(1)), np.float32(1))
