# SPDX-License-Identifier: Apache-2.0
"""The collectives of a job of one replica: nothing travels, the checks and the arithmetic stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from stratagem._core.enums import Reduction
from stratagem.engines.torch._buckets import BucketLayout
from stratagem.engines.torch._header import Header
from stratagem.engines.torch._transport import BucketChannel, Transport, reduce_parts


class LocalTransport(Transport):
    """One replica, alone."""

    def __init__(self) -> None:
        super().__init__(rank=0, world_size=1)

    def _all_reduce(self, header: Header, reduction: Reduction, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [reduce_parts(reduction, [tensor.detach()]) for tensor in tensors]

    @contextmanager
    def _swap(self, header: Header, tensors: Sequence[torch.Tensor]) -> Iterator[list[list[torch.Tensor]]]:
        yield [[tensor.detach() for tensor in tensors]]

    def _bucket_channel(self, layout: BucketLayout) -> BucketChannel:
        return _LocalBuckets(layout)

    def close(self, *, failed: bool = False) -> None:
        """Nothing to leave."""


class _LocalBuckets(BucketChannel):
    """What one replica writes is the total."""

    def __init__(self, layout: BucketLayout) -> None:
        self._buckets = [
            torch.zeros(size, dtype=dtype) for dtype, size in zip(layout.dtypes, layout.sizes, strict=True)
        ]

    def local(self, bucket: int) -> torch.Tensor:
        return self._buckets[bucket]

    def post(self, bucket: int) -> None:
        """Nothing has to travel."""

    def finish(self) -> None:
        """Nothing to wait for."""

    def total(self, bucket: int) -> torch.Tensor:
        return self._buckets[bucket]
