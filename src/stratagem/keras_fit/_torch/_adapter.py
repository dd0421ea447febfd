# SPDX-License-Identifier: Apache-2.0
"""Data adapters that give each replica its rows of every global batch, each row exactly once.

Arrays that are the same in every process are cut by index: a process touches its own rows only. Everything else
(data sets, loaders, generators, arrays that differ because nobody seeded them) is read by the chief, in its order,
and each replica takes its rows of what the chief read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from keras import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from stratagem.data._split import share_of
from stratagem.engines.torch._random_state import share_random_state
from stratagem.engines.torch._transport import Transport
from stratagem.errors import JobMismatchError, ReplicaFailedError
from stratagem.keras_fit._fingerprint import fingerprint, warn_of_other_data
from stratagem.keras_fit._resume import dropped
from stratagem.keras_fit._rows import num_rows
from stratagem.keras_fit._torch._batches import BatchLedger, LocalBatch, cut

_CHIEF = 0


class OwnBatches(ABC):
    """What can be asked for a replica's parts of the batches."""

    @abstractmethod
    def batches(self, count: int = 0, begin: Callable[[], None] = lambda: None) -> Iterator[Any]:
        """Those of one pass without the first `count`; `begin` is called before they are read."""


class ReplicaDataAdapter(DataAdapter, OwnBatches):
    """A Keras data adapter seen from one replica; a collective to make.

    Args:
        inner: The adapter that Keras would use on one device.
        transport: Of the job.
        ledger: Where the shares of the batches are noted.
    """

    def __init__(self, inner: Any, transport: Transport, ledger: BatchLedger) -> None:
        self.inner = inner
        self._transport = transport
        self._ledger = ledger
        mine = _Summary(inner)
        everyones = transport.all_gather_object(mine)
        for replica, theirs in enumerate(everyones):
            if theirs.kind != mine.kind:
                raise JobMismatchError(
                    f"replica {transport.rank} trains on {mine.kind} but replica {replica} on {theirs.kind}",
                    fix="give every process the same kind of data",
                )
        self._chief = everyones[_CHIEF]
        self._by_index = isinstance(inner, ArrayDataAdapter) and all(theirs.matches(mine) for theirs in everyones)
        self._reads = self._by_index or transport.rank == _CHIEF
        if isinstance(inner, ArrayDataAdapter) and not self._by_index:
            warn_of_other_data(transport.rank, [theirs.matches(everyones[_CHIEF]) for theirs in everyones])

    def get_torch_dataloader(self) -> Any:
        return Batches(self)

    @property
    def num_batches(self) -> int | None:
        return self._chief.num_batches

    @property
    def batch_size(self) -> int | None:
        return self._chief.batch_size

    def on_epoch_begin(self) -> None:
        if self._reads:
            self.inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        if self._reads:
            self.inner.on_epoch_end()

    def batches(self, count: int = 0, begin: Callable[[], None] = lambda: None) -> Iterator[Any]:
        """This replica's parts of one pass over the data, in order.

        Args:
            count: How many batches to leave out at its beginning; those of arrays are not read.
            begin: Called before the first of them is read, or its order drawn.
        """
        # Made now, not at the first batch: a loader draws from torch's random state when it is made, and Keras makes
        # the next epoch's before it validates.
        source = self._open(count, begin) if self._reads else None
        return self._local_batches(source)

    def _open(self, count: int, begin: Callable[[], None]) -> Iterator[Any]:
        loader = self.inner.get_torch_dataloader()
        if not self._by_index:
            return dropped(iter(loader), count, begin)
        # The same sampler in the same kind of loader draws the same order as on one device.
        own = torch.utils.data.DataLoader(
            _OwnRows(loader.dataset, self._transport.rank, self._transport.world_size),
            batch_sampler=batches_after(loader.batch_sampler, count, begin),
            collate_fn=_unchanged,
        )
        return iter(own)

    def _local_batches(self, source: Iterator[Any] | None) -> Iterator[Any]:
        if self._by_index:
            # The order is drawn at the first batch; the chief may have drawn more than the others since the last pass.
            share_random_state(self._transport)
        while True:
            batch = next(source, None) if self._by_index and source is not None else self._next_from_chief(source)
            if batch is None:
                return
            yield self._ledger.enter(batch)

    def _next_from_chief(self, read: Iterator[Any] | None) -> LocalBatch | None:
        error: BaseException | None = None
        batch, word = None, "batch"
        if read is not None:
            try:
                batch = next(read)
                num_rows(batch)
            except StopIteration:
                word = "end"
            except Exception as caught:  # noqa: BLE001 - raised again below, once the other replicas know
                error, word = caught, f"{type(caught).__name__}: {caught}"
        spec = None if batch is None else tree.map_structure(_Leaf.of, batch)
        tensors = [part for part in tree.flatten(batch) if isinstance(part, torch.Tensor)]
        with self._transport.from_source(_CHIEF, (word, spec), tensors, "the next batch") as ((word, spec), received):
            if error is not None:
                raise error
            if word == "end":
                return None
            if word != "batch":
                raise ReplicaFailedError(f"replica {_CHIEF} could not read the next batch: {word}")
            parts = iter(received)
            whole = tree.map_structure(lambda leaf: next(parts) if leaf.is_tensor else leaf.value, spec)
            local = cut(whole, self._transport.rank, self._transport.world_size)
            # Copied, because the chief will write the next batch where this one lies.
            return LocalBatch(tree.map_structure(_copy, local.data), local.share)


def batches_after(batch_sampler: Iterable[Any], count: int, begin: Callable[[], None]) -> Iterable[Any]:
    """The batches of indices of a pass without the first `count`; `begin` is called before their order is drawn."""
    if not count:
        return batch_sampler
    begin()
    batches = iter(batch_sampler)
    for _ in range(count):
        next(batches, None)
    return batches


class Batches:
    """What Keras takes for a loader: each iteration is one pass over the data."""

    def __init__(self, adapter: OwnBatches) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[Any]:
        return self._adapter.batches()


class _OwnRows(torch.utils.data.Dataset):
    """Answers the indices of a global batch with one replica's rows of it."""

    def __init__(self, inner: Any, replica: int, num_replicas: int) -> None:
        self._inner = inner
        self._replica = replica
        self._num_replicas = num_replicas

    def __getitems__(self, indices: list[int]) -> LocalBatch:
        share = share_of(self._replica, self._num_replicas, len(indices))
        mine = indices[share.start : share.stop] if share.rows else indices[:1]
        return LocalBatch(self._inner.__getitems__(mine), share)

    def __len__(self) -> int:
        return len(self._inner)


class _Leaf:
    """A batch's leaf without its numbers; picklable."""

    def __init__(self, is_tensor: bool, value: Any) -> None:
        self.is_tensor = is_tensor
        self.value = value

    @classmethod
    def of(cls, part: Any) -> _Leaf:
        is_tensor = isinstance(part, torch.Tensor)
        return cls(is_tensor, None if is_tensor else part)


class _Summary:
    """What processes compare about their data."""

    def __init__(self, inner: Any) -> None:
        self.kind = type(inner).__name__.removesuffix("Adapter")
        self.num_batches = inner.num_batches
        self.batch_size = inner.batch_size
        self.fingerprint = fingerprint(inner._inputs) if isinstance(inner, ArrayDataAdapter) else None

    def matches(self, other: _Summary) -> bool:
        """Whether both describe the same arrays in the same batches."""
        return self.__dict__ == other.__dict__


def _copy(part: Any) -> Any:
    return part.clone() if isinstance(part, torch.Tensor) else part


def _unchanged(batch: Any) -> Any:
    return batch
