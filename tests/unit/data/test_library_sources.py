# SPDX-License-Identifier: Apache-2.0
"""Data sets of Keras, torch, Grain and Hugging Face: what is read by rows, what whole, and what is refused."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import keras
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from stratagem.data._grain import BatchedRowsSource, GrainStreamSource
from stratagem.data._hugging_face import BatchedTableSource
from stratagem.data._iterables import IndexedSource
from stratagem.data._policy import choose
from stratagem.data._sources import source_of
from stratagem.data._torch_loader import RowLoaderSource
from stratagem.errors import ArgumentError, ArgumentTypeError
from tests.unit.data import made_sources

needs_grain = pytest.mark.skipif(importlib.util.find_spec("grain") is None, reason="grain is not installed")
needs_datasets = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    for library in ("grain", "datasets"):
        if importlib.util.find_spec(library):
            importlib.import_module(library)
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch["row"] if isinstance(batch, dict) else batch).tolist() for batch in batches]


def test_a_library_that_nobody_imported_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorflow", "torch.utils.data", "keras.utils", "grain", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)  # to import it would raise
    assert source_of([np.arange(2)]).num_batches == 1


def distributed(**options: Any) -> Any:
    return DistributedSampler(range(6), num_replicas=2, rank=0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2, "sampler": distributed()},
        {"batch_sampler": BatchSampler(distributed(), 2, drop_last=False)},
        {"batch_size": 2, "sampler": distributed(), "num_workers": 1},
    ],
)
def test_a_distributed_sampler_is_refused_and_a_workers_own_data_set_may_have_one(options: Any) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), **options)
    source = source_of(loader)
    with pytest.raises(
        ArgumentError, match="DataLoader has a DistributedSampler, which leaves one process's"
    ) as caught:
        choose(source, 1)
    assert "leave the sampler out: DataLoader(dataset, batch_size=global_batch_size" in str(caught.value)
    assert source.num_batches == 2  # what distribute_datasets_from_function reads


def test_a_loaders_worker_processes_read_own_rows_only_and_empty_parts_keep_their_place() -> None:
    loader = DataLoader(TensorDataset(10 * torch.arange(9)), batch_size=4, num_workers=2)
    source = source_of(loader)
    assert isinstance(source, RowLoaderSource)
    found = source.read_each([[0, 1], [], [8], []])
    assert [batch[0].tolist() for batch in found] == [[0, 10], [], [80], []]
    assert [batch[0].tolist() for batch in source.batches(1)] == [[40, 50, 60, 70], [80]]


class Epochs(keras.utils.PyDataset):
    def __init__(self, count: int | None) -> None:
        super().__init__()
        self.count, self.said = count, []

    @property
    def num_batches(self) -> int | None:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.arange(2) + index

    def on_epoch_begin(self) -> None:
        self.said.append("begin")

    def on_epoch_end(self) -> None:
        self.said.append("end")


def test_a_py_dataset_is_told_of_epochs_and_can_begin_in_the_middle() -> None:
    dataset = Epochs(3)
    source = source_of(dataset)
    assert (source.num_batches, source.resumable) == (3, True)
    assert lists(source.batches(1)) == [[1, 2], [2, 3]]
    assert dataset.said == ["begin", "end"]


def test_a_py_dataset_without_an_end_goes_on() -> None:
    source = source_of(Epochs(None))
    assert source.num_batches is None
    assert next(source.batches(1000)).tolist() == [1000, 1001]


def test_a_py_dataset_that_does_not_say_its_length_has_no_end() -> None:
    class Silent(keras.utils.PyDataset):
        pass

    assert source_of(Silent()).num_batches is None


@needs_grain
def test_a_map_dataset_begins_in_the_middle_without_reading_what_was_before() -> None:
    read: list[int] = []
    import grain

    source = source_of(grain.MapDataset.source(made_sources.Rows(read)).batch(8, drop_remainder=True))
    assert isinstance(source, BatchedRowsSource)
    assert source.num_batches == 2
    assert lists(source.batches(1)) == [list(range(8, 16))]
    assert read == list(range(8, 16))
    assert lists([source.read(range(0))]) == [[]]


@needs_grain
def test_batches_of_grain_that_are_made_in_a_way_of_their_own_are_read_whole() -> None:
    import grain

    rows = grain.MapDataset.range(5)
    padded = source_of(rows.batch(4, batch_fn=lambda found: np.array([*found, *[0] * (4 - len(found))])))
    assert isinstance(padded, IndexedSource)
    assert lists(padded.batches(1)) == [[4, 0, 0, 0]]
    filtered = source_of(rows.batch(2).filter(lambda batch: batch[0] != 2))
    assert isinstance(filtered, GrainStreamSource)
    assert lists(filtered.batches(0)) == [[0, 1], [4]]


@needs_grain
def test_batches_that_a_grain_source_of_ones_own_makes_are_taken() -> None:
    import grain

    class Own(grain.MapDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: Any) -> Any:
            return np.arange(3) + index

    assert lists(source_of(Own()).batches(1)) == [[1, 2, 3]]
    assert lists(source_of(grain.MapDataset.source([np.arange(2)]).batch(1)).batches(0)) == [[[0, 1]]]


@needs_grain
def test_an_endless_map_dataset_has_no_number_of_batches() -> None:
    import grain

    for dataset in (grain.MapDataset.range(5).repeat().batch(4), grain.MapDataset.range(5).batch(5).repeat()):
        source = source_of(dataset)
        assert source.num_batches is None
        assert len(next(source.batches(0))) >= 4


@needs_grain
@pytest.mark.parametrize("kind", ["MapDataset", "IterDataset", "DataLoader", "DataLoader of workers"])
def test_single_rows_of_grain_are_refused(kind: str) -> None:
    import grain

    class Unbatch(grain.experimental.FlatMapTransform):
        max_fan_out = 2

        def flat_map(self, element: Any) -> Any:
            return list(element)

    dataset: Any = grain.MapDataset.range(5)
    if kind == "IterDataset":
        dataset = dataset.batch(2).to_iter_dataset().apply(Unbatch())
    if kind.startswith("DataLoader"):
        dataset = grain.DataLoader(
            data_source=range(5),
            sampler=grain.samplers.IndexSampler(5),
            shard_options=grain.sharding.NoSharding(),
            worker_count=2 if kind.endswith("workers") else 0,
        )
    with pytest.raises(ArgumentTypeError, match=r"the grain\.\w+ gives single rows: there is no batch") as caught:
        source_of(dataset)
    assert ".batch(global_batch_size)" in str(caught.value)


@needs_grain
def test_a_grain_loader_that_keeps_a_shard_is_refused() -> None:
    import grain

    whole = source_of(made_sources.grain_loader([], grain.sharding.ShardOptions(0, 1)))
    assert whole.own_shard is None
    source = source_of(made_sources.grain_loader([], grain.sharding.ShardOptions(0, 2)))
    with pytest.raises(ArgumentError, match=r"the grain\.DataLoader has a ShardOptions") as caught:
        choose(source, 2)
    assert "shard_options=grain.sharding.NoSharding()" in str(caught.value)


def rows_of_words() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"row": list(range(7)), "word": [f"w{row}" for row in range(7)]})


@needs_datasets
@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_a_table_is_read_by_rows_in_its_own_order_and_format(form: str | None) -> None:
    source = source_of(rows_of_words().with_format(form).batch(3, drop_last_batch=True).select([1, 0]))
    assert isinstance(source, BatchedTableSource)
    assert source.num_batches == 2
    first, second = source.batches(0)
    assert (first["row"].tolist(), second["word"].tolist()) == ([3, 4, 5], ["w0", "w1", "w2"])
    assert isinstance(first["row"], torch.Tensor) == (form == "torch")
    assert source.read([5, 0])["row"].tolist() == [5, 0]
    assert [column.shape for column in source.read([]).values()] == [(0,), (0,)]


@needs_datasets
def test_only_the_columns_of_a_tables_format_are_read() -> None:
    (batch,) = source_of(rows_of_words().batch(7).with_format("numpy", columns=["row"])).batches(0)
    assert list(batch) == ["row"]


@needs_datasets
def test_a_transform_of_ones_own_gets_whole_batches() -> None:
    dataset = rows_of_words().batch(4).with_transform(lambda cells: {"row": [np.array(cell) for cell in cells["row"]]})
    source = source_of(dataset)
    assert isinstance(source, IndexedSource)
    assert lists(source.batches(1)) == [[4, 5, 6]]


@needs_datasets
def test_rows_of_a_table_may_come_by_a_torch_loader() -> None:
    source = source_of(DataLoader(rows_of_words().with_format("torch"), batch_size=4))  # type: ignore[arg-type]
    assert isinstance(source, RowLoaderSource)
    assert lists(source.batches(1)) == [[4, 5, 6]]


@needs_datasets
@pytest.mark.parametrize("streamed", [False, True])
def test_single_rows_of_a_table_are_refused(streamed: bool) -> None:
    dataset = rows_of_words().to_iterable_dataset() if streamed else rows_of_words()
    with pytest.raises(ArgumentTypeError, match="gives single rows: in column 'row' is no list of them") as caught:
        next(source_of(dataset).batches(0))
    assert "dataset.batch(global_batch_size)" in str(caught.value)


@needs_datasets
@pytest.mark.parametrize("streamed", [False, True])
def test_lists_that_are_no_batches_are_refused(streamed: bool) -> None:
    import datasets

    dataset: Any = datasets.Dataset.from_dict({"a": [[1, 2], [1, 2]], "b": [[1, 2], [1]]})
    dataset = dataset.to_iterable_dataset() if streamed else dataset
    with pytest.raises(ArgumentTypeError, match=r"element 1 of the .* is no batch: column '.' has . rows and column"):
        list(source_of(dataset).batches(0))


@needs_datasets
@pytest.mark.parametrize("streamed", [False, True])
def test_formats_without_arrays_are_refused(streamed: bool) -> None:
    dataset = rows_of_words().batch(4)
    dataset = dataset.to_iterable_dataset() if streamed else dataset
    with pytest.raises(ArgumentTypeError, match="has the format 'arrow', whose batches are no arrays"):
        source_of(dataset.with_format("arrow"))


@needs_datasets
def test_a_stream_begins_in_the_middle_and_one_nodes_share_of_it_is_refused() -> None:
    from datasets.distributed import split_dataset_by_node

    stream = rows_of_words().to_iterable_dataset()
    source = source_of(stream.batch(4))
    assert (source.num_batches, lists(source.batches(1))) == (None, [[4, 5, 6]])
    mine = source_of(split_dataset_by_node(stream, rank=0, world_size=2).batch(2))
    with pytest.raises(ArgumentError, match="has a share of one node, which leaves") as caught:
        choose(mine, 2)
    assert "leave split_dataset_by_node out" in str(caught.value)
