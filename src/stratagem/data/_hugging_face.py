# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's `datasets.Dataset` and `datasets.IterableDataset` as sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stratagem.data._iterables import IndexedSource
from stratagem.data._source import OwnShard, RowSource, Source
from stratagem.data._spec import empty_like
from stratagem.errors import ArgumentTypeError

__all__ = ["BatchedTableSource", "TableStreamSource", "table_source", "table_stream_source"]

_KIND = "datasets.Dataset"
_STREAM_KIND = "datasets.IterableDataset"
_ARRAYS = ("numpy", "torch", "jax")  # formats whose columns are arrays of rows
_OWN = "custom"  # with_transform's
_BATCH_IT = "batch it by the rows of a global batch: dataset.batch(global_batch_size)"


def table_source(dataset: Any) -> Source:
    """By rows, unless a transform of one's own wants whole batches.

    Raises:
        ArgumentTypeError: it is not batched, or gives no arrays.
    """
    form = _checked_format(dataset.format["type"], _KIND)
    if form == _OWN:
        return IndexedSource(_KIND, dataset, len(dataset))
    return BatchedTableSource(dataset if form else dataset.with_format("numpy"))


def table_stream_source(dataset: Any) -> Source:
    """By global batches.

    Raises:
        ArgumentTypeError: it is not batched, or gives no arrays.
    """
    formatting = dataset._formatting
    form = _checked_format(formatting and formatting.format_type, _STREAM_KIND)
    return TableStreamSource(dataset if form else dataset.with_format("numpy"))


class BatchedTableSource(RowSource):
    """A data set in a table, after `dataset.batch(n)`: each process reads and decodes its own rows.

    Every cell of such a table is a list, and the lists of a column lie behind each other: that is the table of rows,
    and to look at it so copies nothing.

    Args:
        dataset: Of global batches, in a format of arrays.

    Raises:
        ArgumentTypeError: a column has no lists, or not as long as another's.
    """

    kind = _KIND

    def __init__(self, dataset: Any) -> None:
        form = dataset.format
        names = dataset.column_names if form["output_all_columns"] else form["columns"]
        columns = {name: dataset.data.column(name) for name in names}
        for name, column in columns.items():
            if not _holds_lists(column):
                raise _single_rows(_KIND, name, str(column.type))
        lengths = {name: _lengths(column) for name, column in columns.items()}
        (first, sizes), *others = lengths.items()
        for name, other in others:
            if not np.array_equal(sizes, other):
                at = int(np.argmax(sizes != other))
                raise _unequal(_KIND, at, first, int(sizes[at]), name, int(other[at]))
        self._rows = _flat(dataset, columns).with_format(
            form["type"], form["columns"], form["output_all_columns"], **form["format_kwargs"]
        )
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        # Where `select` or `shuffle` came after `batch`.
        indices = dataset._indices
        self._order = np.arange(len(sizes)) if indices is None else indices.column(0).to_numpy()

    @property
    def num_batches(self) -> int:
        return len(self._order)

    def draw(self) -> None:
        """Nothing: the order is the table's."""

    def plans(self, drawn: None, start: int) -> Iterator[Sequence[int]]:
        for cell in self._order[start:]:
            yield range(int(self._starts[cell]), int(self._ends[cell]))

    def read(self, rows: Sequence[int]) -> Any:
        if not rows:
            # What a row looks like is told by reading one.
            return empty_like(self.read(range(1)))
        found = self._rows[rows.start : rows.stop] if isinstance(rows, range) else self._rows[list(rows)]
        return {name: _array(column) for name, column in found.items()}


class TableStreamSource(Source):
    """An `IterableDataset`, after `dataset.batch(n)`.

    Args:
        dataset: Of global batches, in a format of arrays.
    """

    kind = _STREAM_KIND

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        node = getattr(dataset, "_distributed", None)
        if node is not None and node.world_size > 1:
            self.own_shard = OwnShard("share of one node", "leave split_dataset_by_node out")

    @property
    def num_batches(self) -> None:
        return None

    def batches(self, start: int) -> Iterator[Any]:
        for number, element in enumerate(itertools.islice(iter(self._dataset), start, None), start):
            batch = {name: _array(column) for name, column in element.items()}
            for name, column in batch.items():
                if not getattr(column, "ndim", 0):
                    raise _single_rows(self.kind, name, type(column).__name__)
            (first, rows), *others = ((name, len(column)) for name, column in batch.items())
            for name, other in others:
                if other != rows:
                    raise _unequal(self.kind, number, first, rows, name, other)
            yield batch


def _checked_format(form: str | None, kind: str) -> str | None:
    if form in (None, _OWN, *_ARRAYS):
        return form
    raise ArgumentTypeError(
        f"the {kind} has the format {form!r}, whose batches are no arrays", fix='dataset.with_format("numpy")'
    )


def _flat(dataset: Any, columns: dict[str, Any]) -> Any:
    """The data set of the rows that the lists in `columns` hold."""
    import pyarrow as pa
    from datasets import Dataset, DatasetInfo, Features
    from datasets.table import InMemoryTable

    flat = {
        name: pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=column.type.value_type)
        for name, column in columns.items()
    }
    features = Features({name: dataset.features[name].feature for name in columns})
    # Its fingerprint would be a hash of all data, and is used by nothing here.
    return Dataset(InMemoryTable(pa.table(flat)), info=DatasetInfo(features=features), fingerprint="stratagem")


def _holds_lists(column: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_one(column.type) for is_one in kinds)


def _lengths(column: Any) -> np.ndarray:
    """How long the lists of a column are."""
    chunks = [chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)


def _array(column: Any) -> Any:
    """A column's rows as an array; of strings, and of lists of several lengths, one of objects."""
    if not isinstance(column, list):
        return column
    array = np.empty(len(column), object)
    for row, value in enumerate(column):
        array[row] = value
    return array


def _single_rows(kind: str, column: str, found: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"the {kind} gives single rows: in column {column!r} is no list of them, but {found}", fix=_BATCH_IT
    )


def _unequal(kind: str, at: int, first: str, rows: int, second: str, others: int) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"element {at} of the {kind} is no batch: column {first!r} has {rows} rows and column {second!r} {others}",
        fix=_BATCH_IT,
    )
