# SPDX-License-Identifier: Apache-2.0
"""The batches of a `DistributedDataset`, of which a replica has its own rows already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from keras import tree

from stratagem.data._feeds import BatchParts, Divided, Parts
from stratagem.data._split import Share, share_of
from stratagem.engines.torch._transport import Transport
from stratagem.keras_fit._divided import DividedData
from stratagem.keras_fit._rows import num_rows
from stratagem.keras_fit._torch._adapter import Batches, OwnBatches
from stratagem.keras_fit._torch._batches import BatchLedger, LocalBatch


class DividedBatches(DividedData, OwnBatches):
    """A divided data set seen from one replica.

    Args:
        dataset: Divided among the replicas of the job.
        class_weight: By class, as `fit` takes it.
        transport: Of the job.
        ledger: Where the shares of the batches are noted.
    """

    def __init__(
        self, dataset: Divided, class_weight: Mapping[int, float] | None, transport: Transport, ledger: BatchLedger
    ) -> None:
        super().__init__(dataset, class_weight)
        self._transport = transport
        self._ledger = ledger

    def get_torch_dataloader(self) -> Any:
        return Batches(self)

    def batches(self, count: int = 0, begin: Callable[[], None] = lambda: None) -> Iterator[Any]:
        """This replica's parts of one pass, in order; `count` and `begin` as in `steps`."""
        return self._local(self.steps(count, begin))

    def _local(self, steps: Iterator[Parts]) -> Iterator[Any]:
        rank = self._transport.rank
        for parts in steps:
            part = tree.map_structure(_tensor, parts[0])
            counts = self._counts(parts, num_rows(part))
            share = Share(sum(counts[:rank]), sum(counts[: rank + 1]), sum(counts))
            if not share.global_rows:
                continue
            if 0 in counts:
                part = self._with_a_row(part, counts)
            yield self._ledger.enter(LocalBatch(part, share))

    def _counts(self, parts: Parts, own: int) -> list[int]:
        """The rows of each replica."""
        if isinstance(parts, BatchParts):
            rows, size = parts.shares[0].global_rows, self._transport.world_size
            return [share_of(replica, size, rows).rows for replica in range(size)]
        return self._transport.all_gather_object(own)

    def _with_a_row(self, part: Any, counts: Sequence[int]) -> Any:
        """`part`, or where it has no rows another replica's first row, which will not count."""
        giver = next(replica for replica, rows in enumerate(counts) if rows)
        first = [leaf[:1] for leaf in tree.flatten(part)]
        with self._transport.from_source(giver, None, first, "the first row of the batch") as (_, row):
            if counts[self._transport.rank]:
                return part
            return tree.pack_sequence_as(part, [leaf.clone() for leaf in row])


def _tensor(leaf: Any) -> torch.Tensor:
    return leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(np.asarray(leaf))
