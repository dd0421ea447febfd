# SPDX-License-Identifier: Apache-2.0
"""torch's `DataLoader` as a source."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from stratagem.data._source import RowSource, Source
from stratagem.data._spec import empty_like

__all__ = ["LoaderSource", "RowLoaderSource"]

_KIND = "torch.utils.data.DataLoader"


class LoaderSource(Source):
    """A loader as it is: of an iterable data set, or with workers or a sampler of its own making.

    Args:
        loader: Of global batches.
    """

    kind = _KIND

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @property
    def num_batches(self) -> int | None:
        return _length(self._loader)

    def batches(self, start: int) -> Iterator[Any]:
        return itertools.islice(iter(self._loader), start, None)


class RowLoaderSource(RowSource):
    """A loader over a data set with indices: each process reads its own rows of the batches that its sampler draws.

    Args:
        loader: Of global batches, for which `takes` is true.
    """

    kind = _KIND

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @staticmethod
    def takes(loader: Any) -> bool:
        """Whether single rows can be read: it collates rows of a map-style data set in this process."""
        from torch.utils.data import IterableDataset

        endless = _length(loader) is None
        return not (isinstance(loader.dataset, IterableDataset) or loader.num_workers or endless) and (
            loader.batch_sampler is not None
        )

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


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # of an iterable data set or a sampler without a length
        return None
