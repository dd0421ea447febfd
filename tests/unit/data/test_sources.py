# SPDX-License-Identifier: Apache-2.0
"""What a user's data set offers: its batches, its single rows, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from stratagem.data._arrays import ArrayDataset
from stratagem.data._iterables import IterableSource
from stratagem.data._sources import source_of
from stratagem.data._torch_loader import LoaderSource, RowLoaderSource
from stratagem.errors import ArgumentError, ArgumentTypeError


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def test_arrays_are_cut_into_batches_and_structures_are_kept() -> None:
    dataset = ArrayDataset({"x": np.arange(10).reshape(5, 2), "y": torch.arange(5)}, batch_size=2)
    first, _, last = dataset.batches(0)
    assert first["x"].tolist() == [[0, 1], [2, 3]]
    assert last["y"].tolist() == [4]
    assert dataset.num_batches == 3
    assert dataset.element_spec["x"] == ((None, 2), "int64")


def test_a_remainder_can_be_dropped_and_then_batches_have_one_size() -> None:
    dataset = ArrayDataset(np.arange(5), batch_size=2, drop_remainder=True)
    assert lists(dataset.batches(0)) == [[0, 1], [2, 3]]
    assert (dataset.num_batches, dataset.element_spec) == (2, ((2,), "int64"))


def test_a_seeded_order_repeats_in_another_process_and_differs_between_passes() -> None:
    def passes() -> list[Any]:
        dataset = ArrayDataset(np.arange(40), batch_size=8, shuffle=True, seed=3)
        return [lists(dataset.batches(0)) for _ in range(2)]

    first, second = passes()
    assert passes() == [first, second]
    assert first != second
    assert sorted(row for batch in first for row in batch) == list(range(40))


def test_a_drawn_order_is_the_same_for_whoever_is_given_it_and_can_begin_in_the_middle() -> None:
    chief, other = (ArrayDataset(np.arange(40), batch_size=8, shuffle=True) for _ in range(2))
    drawn = chief.draw()
    whole = [list(rows) for rows in chief.plans(drawn, 0)]
    assert [list(rows) for rows in other.plans(drawn, 2)] == whole[2:]


@pytest.mark.parametrize(
    ("arrays", "size", "text"),
    [
        ((np.arange(3), np.arange(4)), 2, "the arrays have 3 and 4 rows"),
        (np.arange(3), 0, "batch_size=0 is less than 1"),
        (np.float32(3), 1, "has no rows"),
    ],
)
def test_arrays_that_make_no_batches_are_refused(arrays: Any, size: int, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        ArrayDataset(arrays, size)


class Counted(Dataset[int]):
    """Notes which rows were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> int:
        self.read.append(row)
        return 10 * row


def test_of_a_loaders_rows_only_those_asked_for_are_read() -> None:
    dataset = Counted()
    source = source_of(DataLoader(dataset, batch_size=4))
    assert isinstance(source, RowLoaderSource)
    plans = list(source.plans(source.draw(), 0))
    assert plans == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert source.read(plans[1][2:]).tolist() == [60, 70]
    assert dataset.read == [6, 7]


def test_a_loaders_own_sampler_and_collate_function_count() -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(6)),
        batch_size=4,
        sampler=[5, 3, 1, 0, 2],
        drop_last=True,
        collate_fn=lambda rows: torch.stack([row[0] for row in rows]) + 100,
    )
    assert lists(source_of(loader).batches(0)) == lists(loader) == [[105, 103, 101, 100]]


class Streamed(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_a_loader_over_a_stream_gives_its_batches_and_can_leave_out_the_first() -> None:
    source = source_of(DataLoader(Streamed(), batch_size=2))
    assert isinstance(source, LoaderSource)
    assert source.num_batches is None
    assert lists(source.batches(1)) == [[2, 3], [4]]


def test_a_function_is_called_for_every_pass_and_an_iterator_passed_over_once() -> None:
    again = IterableSource(lambda: (np.arange(2) for _ in range(2)))
    assert lists(again.batches(0)) == lists(again.batches(0)) == [[0, 1], [0, 1]]
    once = IterableSource(iter([np.arange(2)]))
    assert lists(once.batches(0)) == [[0, 1]]
    with pytest.raises(ArgumentError, match="can be passed over once, and has been"):
        once.batches(0)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (np.arange(3), "a ndarray has no batches"),
        ("rows", "a str has no batches"),
        (7, "a int is no data set"),
    ],
)
def test_what_is_no_data_set_is_refused_with_what_to_give(dataset: Any, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=text) as caught:
        source_of(dataset)
    assert "stratagem.ArrayDataset" in str(caught.value)


def test_elements_without_rows_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="an element of the list has no array with rows in it"):
        next(source_of([1.5]).batches(0))
