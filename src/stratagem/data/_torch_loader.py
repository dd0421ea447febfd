# SPDX-License-Identifier: Apache-2.0
"""torch's `DataLoader` as a source."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stratagem.data._source import OwnShard, RowSource, Source
from stratagem.data._spec import empty_like

__all__ = ["LoaderSource", "RowLoaderSource", "loader_source"]

_KIND = "torch.utils.data.DataLoader"


def loader_source(loader: Any) -> Source:
    """By rows if the loader collates rows of a data set with indices, else as it is."""
    return RowLoaderSource(loader) if RowLoaderSource.takes(loader) else LoaderSource(loader)


class LoaderSource(Source):
    """A loader as it is: of an iterable data set, or without batches of its own making.

    Args:
        loader: Of global batches.
    """

    kind = _KIND

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.own_shard = _own_shard(loader)

    @property
    def num_batches(self) -> int | None:
        return _length(self._loader)

    def batches(self, start: int) -> Iterator[Any]:
        return itertools.islice(iter(self._loader), start, None)


class RowLoaderSource(RowSource):
    """A loader over a data set with indices: each process reads its own rows of the batches that its sampler draws.

    With `num_workers` each process has as many of torch's worker processes, started anew for a pass.

    Args:
        loader: Of global batches, for which `takes` is true.
    """

    kind = _KIND

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.own_shard = _own_shard(loader)

    @staticmethod
    def takes(loader: Any) -> bool:
        """Whether single rows can be read: it collates rows of a map-style data set, and has an end."""
        from torch.utils.data import IterableDataset

        endless = _length(loader) is None
        return not (isinstance(loader.dataset, IterableDataset) or endless) and loader.batch_sampler is not None

    @property
    def num_batches(self) -> int | None:
        return _length(self._loader)

    def draw(self) -> list[list[int]]:
        """The indices of every batch, as the sampler draws them."""
        return [list(indices) for indices in self._loader.batch_sampler]

    def plans(self, drawn: list[list[int]], start: int) -> Iterator[Sequence[int]]:
        return iter(drawn[start:])

    def read(self, rows: Sequence[int]) -> Any:
        dataset, collate = self._loader.dataset, self._loader.collate_fn
        if not rows:
            # What a row looks like is told by reading one.
            return empty_like(collate([dataset[0]]))
        if hasattr(dataset, "__getitems__"):
            return collate(dataset.__getitems__(list(rows)))
        return collate([dataset[row] for row in rows])

    def read_each(self, plans: Iterable[Sequence[int]]) -> Iterator[Any]:
        if not self._loader.num_workers:
            return super().read_each(plans)
        return _by_workers(self._loader, plans)


def _by_workers(loader: Any, plans: Iterable[Sequence[int]]) -> Iterator[Any]:
    """A batch for each of `plans`, from worker processes as the loader has them."""
    from torch.utils.data import DataLoader

    lengths: deque[int] = deque()  # of the plans that the workers were given, and have not answered

    def given() -> Iterator[list[int]]:
        for rows in plans:
            lengths.append(len(rows))
            yield list(rows) or [0]  # a worker can't collate nothing: of a row's batch no row is taken

    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    own = DataLoader(
        loader.dataset,
        batch_sampler=given(),  # pyright: ignore[reportArgumentType] - any iterable will do, if it is used once
        prefetch_factor=loader.prefetch_factor,
        **{name: getattr(loader, name) for name in names},
    )
    return (batch if lengths.popleft() else empty_like(batch) for batch in iter(own))


def _own_shard(loader: Any) -> OwnShard | None:
    from torch.utils.data.distributed import DistributedSampler

    # A batch sampler of one's own holds the sampler of rows.
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = next((sampler for sampler in samplers if isinstance(sampler, DistributedSampler)), None)
    if found is None:
        return None
    return OwnShard(
        type(found).__name__, "leave the sampler out: DataLoader(dataset, batch_size=global_batch_size, shuffle=True)"
    )


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # of an iterable data set or a sampler without a length
        return None
