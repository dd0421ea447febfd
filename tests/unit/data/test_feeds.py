# SPDX-License-Identifier: Apache-2.0
"""Workers, simulated one thread each, end together: no row lost or doubled, and no message that is not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.data._arrays import ArrayDataset
from stratagem.data._feeds import Feed, OwnFeed, Place, RowFeed, SharedFeed, pieces, sets_of
from stratagem.data._iterables import IterableSource
from tests.unit.data.threads import Job, Make, run


def ranges(count: int, first: int) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: (np.arange(2) + 2 * number + first for number in range(count))


def rows_of(steps: list[list[int]]) -> list[int]:
    return [row for step in steps for row in step]


def own(counts: list[int], *, known: bool) -> Make:
    def make(place: Place, job: Job) -> Feed:
        batches = ranges(counts[place.worker], 1000 * place.worker)
        count = -(-counts[place.worker] // place.per_worker) if known else None
        return OwnFeed(lambda: sets_of(batches(), place.per_worker), count, place, job, 2)

    return make


@settings(max_examples=12, deadline=None)
@given(counts=st.lists(st.integers(0, 21), min_size=2, max_size=3), known=st.booleans())
def test_workers_with_any_numbers_of_batches_end_in_the_same_step_and_use_each_row_once(
    counts: list[int], known: bool
) -> None:
    found, threads = run(own(counts, known=known), processes=len(counts), workers=len(counts))
    assert {len(steps) for steps in found} == {max(counts)}
    for worker, steps in enumerate(found):
        assert rows_of(steps) == [1000 * worker + row for row in range(2 * counts[worker])]
    if max(counts):
        assert threads.messages == (1 if known else 2 + max(counts) // 8 + (max(counts) % 8 > 0))


def test_processes_of_one_worker_share_what_its_first_one_reads() -> None:
    found, _ = run(own([3], known=True), processes=2, workers=1)
    assert found == [[[0, 1], [4, 5]], [[2, 3], []]]


def test_two_workers_of_two_processes_each_have_their_own_data() -> None:
    found, _ = run(own([3, 1], known=False), processes=4, workers=2)
    assert found == [[[0, 1], [4, 5]], [[2, 3], []], [[1000, 1001], []], [[], []]]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_rows_read_by_the_chief_and_rows_read_by_index_are_the_same(processes: int) -> None:
    array = np.arange(11)

    def shared(place: Place, job: Job) -> Feed:
        return SharedFeed(IterableSource([array[:4], array[4:8], array[8:]]), place, job, 1)

    def by_index(place: Place, job: Job) -> Feed:
        return RowFeed(ArrayDataset(array, 4), place, job)

    first, _ = run(shared, processes=processes, workers=processes)
    second, threads = run(by_index, processes=processes, workers=1)
    assert first == second
    assert threads.messages == (1 if processes > 1 else 0)  # the order, once a pass
    assert sorted(row for steps in first for row in rows_of(steps)) == list(range(11))


def test_a_workers_pieces_of_its_own_batches_have_its_share_of_rows() -> None:
    def make(place: Place, job: Job) -> Feed:
        source = IterableSource([np.arange(4), np.arange(4, 8), np.arange(8, 11)])
        return OwnFeed(lambda: pieces(source, place), None, place, job, 1)

    found, _ = run(make, processes=2, workers=2)
    assert found == [[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]] * 2
