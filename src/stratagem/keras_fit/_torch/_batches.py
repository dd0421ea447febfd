# SPDX-License-Identifier: Apache-2.0
"""Global batches cut into the replicas' parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from keras import tree

from stratagem.data._split import Share, share_of
from stratagem.keras_fit._rows import num_rows


@dataclass(frozen=True)
class LocalBatch:
    """A replica's part of a global batch; if it has no rows, the batch's first row, which will not count."""

    data: Any
    share: Share


@dataclass
class BatchLedger:
    """Which share each batch on its way through Keras's iterator is.

    Keras passes batches on unchanged but knows nothing of shares, so they are looked up by the batch itself.
    """

    _known: dict[int, tuple[Any, Share]] = field(default_factory=dict)
    _LIMIT = 1024

    def enter(self, batch: LocalBatch) -> Any:
        """Note `batch`; returns its data, to hand to Keras."""
        if len(self._known) >= self._LIMIT:
            # Batches that Keras fetched and did not run, such as the one it builds a model from.
            self._known.pop(next(iter(self._known)))
        self._known[id(batch.data)] = (batch.data, batch.share)
        return batch.data

    def take(self, data: Any) -> LocalBatch | None:
        """The batch that was noted with `data`, or None if Keras got it elsewhere."""
        known = self._known.pop(id(data), None)
        return None if known is None else LocalBatch(*known)


def cut(batch: Any, replica: int, num_replicas: int) -> LocalBatch:
    """Replica `replica`'s part of a global batch of tensors; parts without rows go to every replica whole."""
    share = share_of(replica, num_replicas, num_rows(batch))
    start, stop = (share.start, share.stop) if share.rows else (0, 1)
    return LocalBatch(tree.map_structure(lambda part: _rows(part, start, stop), batch), share)


def _rows(part: Any, start: int, stop: int) -> Any:
    if part is None or getattr(part, "ndim", 0) == 0:
        return part
    return part[start:stop]


def as_tensors(batch: Any) -> Any:
    """A batch of arrays, or of lists of numbers, as tensors of this process."""
    if batch is None:
        return None
    if isinstance(batch, dict):
        return {name: as_tensors(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)) and not _is_numbers(batch):
        return type(batch)(as_tensors(part) for part in batch)
    return torch.as_tensor(batch)


def _is_numbers(part: Any) -> bool:
    while isinstance(part, (list, tuple)):
        if not part:
            return True
        part = part[0]
    return isinstance(part, (bool, int, float))
