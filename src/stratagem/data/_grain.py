# SPDX-License-Identifier: Apache-2.0
"""Grain's `MapDataset`, `IterDataset` and `DataLoader` as sources."""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from stratagem.data._iterables import IndexedSource, checked
from stratagem.data._source import OwnShard, RowSource, Source
from stratagem.data._spec import empty_like
from stratagem.errors import ArgumentTypeError

__all__ = ["BatchedRowsSource", "GrainStreamSource", "grain_loader_source", "iter_dataset_source", "map_dataset_source"]

_STACKS = re.compile(r"grain\..*\.make_batch")
# By name, since Grain does not export the classes of its nodes.
_BATCHES = frozenset({"BatchMapDataset", "BatchIterDataset", "RebatchIterDataset"})
_UNBATCHES = frozenset({"FlatMapMapDataset", "FlatMapIterDataset"})
_SOURCES = frozenset({"SourceMapDataset", "RangeMapDataset"})
_SPARSE = frozenset({"FilterMapDataset", "FlatMapMapDataset"})  # where an index may have no element


def map_dataset_source(dataset: Any) -> Source:
    """By rows if `.batch` is its last step, else by global batches.

    Raises:
        ArgumentTypeError: it is not batched.
    """
    kind = "grain.MapDataset"
    _require_batches(dataset, kind)
    if BatchedRowsSource.takes(dataset):
        return BatchedRowsSource(dataset)
    if _is_sparse(dataset):
        return GrainStreamSource(kind, dataset)
    return IndexedSource(kind, dataset, _count(len(dataset)))


def iter_dataset_source(dataset: Any) -> Source:
    """By global batches.

    Raises:
        ArgumentTypeError: it is not batched.
    """
    kind = "grain.IterDataset"
    _require_batches(dataset, kind)
    return GrainStreamSource(kind, dataset)


def grain_loader_source(loader: Any) -> Source:
    """By global batches.

    Raises:
        ArgumentTypeError: it is not batched.
    """
    kind = "grain.DataLoader"
    _require_batches(getattr(loader, "_dataset", None), kind)
    source = GrainStreamSource(kind, loader)
    shards = getattr(loader, "_shard_options", None)
    if getattr(shards, "shard_count", 1) > 1:
        source.own_shard = OwnShard(type(shards).__name__, "give it shard_options=grain.sharding.NoSharding()")
    return source


class BatchedRowsSource(RowSource):
    """A `MapDataset` whose last step is `.batch`: each process reads its own rows, and batches those.

    Args:
        dataset: For which `takes` is true.
    """

    kind = "grain.MapDataset"

    def __init__(self, dataset: Any) -> None:
        (self._rows,) = dataset.parents
        self._batch_size: int = dataset._batch_size
        self._batch = dataset._batch_fn
        num_rows = _count(len(self._rows))
        if num_rows is not None and dataset._drop_remainder:
            num_rows = num_rows // self._batch_size * self._batch_size
        self._num_rows = num_rows

    @staticmethod
    def takes(dataset: Any) -> bool:
        """Whether it ends in a `.batch` that stacks rows; a function of one's own may pad them to a whole batch."""
        batch = getattr(dataset, "_batch_fn", None)
        batch = batch.func if isinstance(batch, functools.partial) else batch
        name = f"{getattr(batch, '__module__', '')}.{getattr(batch, '__name__', '')}"
        return type(dataset).__name__ == "BatchMapDataset" and bool(_STACKS.fullmatch(name))

    @property
    def num_batches(self) -> int | None:
        return None if self._num_rows is None else -(-self._num_rows // self._batch_size)

    def draw(self) -> None:
        """Nothing: Grain's orders come from seeds, which all processes have."""

    def plans(self, drawn: None, start: int) -> Iterator[Sequence[int]]:
        size = self._batch_size
        for number in itertools.count(start):
            begin, end = number * size, (number + 1) * size
            end = end if self._num_rows is None else min(end, self._num_rows)
            if begin >= end:
                return
            yield range(begin, end)

    def read(self, rows: Sequence[int]) -> Any:
        if not rows:
            # What a row looks like is told by reading one.
            return empty_like(self.read([0]))
        return checked(self._batch([self._rows[row] for row in rows]), self.kind)


class GrainStreamSource(Source):
    """What Grain only passes over, from the beginning.

    Args:
        kind: What it is, for people.
        dataset: Of global batches.
    """

    def __init__(self, kind: str, dataset: Any) -> None:
        self.kind = kind
        self._dataset = dataset

    @property
    def num_batches(self) -> int | None:
        return None

    def batches(self, start: int) -> Iterator[Any]:
        # Made now: what is wrong with the pipeline is said before the first step.
        return _until_closed(iter(self._dataset), start, self.kind)


def _until_closed(iterator: Any, start: int, kind: str) -> Iterator[Any]:
    try:
        for batch in itertools.islice(iterator, start, None):
            yield checked(batch, kind)
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:  # ends the threads that read ahead
            close()


def _require_batches(node: Any, kind: str) -> None:
    if _gives_rows(node):
        raise ArgumentTypeError(
            f"the {kind} gives single rows: there is no batch among its steps",
            fix="batch it by the rows of a global batch, with .batch(global_batch_size) or grain.transforms.Batch; if "
            "its source holds global batches, give a function that returns it",
        )


def _gives_rows(node: Any) -> bool:
    """Whether no step batches what a source of Grain's holds; of a source of one's own nobody can tell."""
    names = _names(node)
    if names & _BATCHES:
        return False
    return bool(names & (_UNBATCHES | _SOURCES)) or any(map(_gives_rows, _parents(node)))


def _is_sparse(node: Any) -> bool:
    return bool(_names(node) & _SPARSE) or any(map(_is_sparse, _parents(node)))


def _names(node: Any) -> set[str]:
    return {kind.__name__ for kind in type(node).__mro__}


def _parents(node: Any) -> Sequence[Any]:
    # What several processes read is interleaved, and then no parent.
    interleaved = getattr(node, "_datasets", ())
    return getattr(node, "parents", ()) or (interleaved[:1] if isinstance(interleaved, (list, tuple)) else ())


def _count(length: int) -> int | None:
    # An endless `.repeat()` has the largest length that there is, and may have been cut by batches since.
    return None if length > sys.maxsize // 2**20 else length
