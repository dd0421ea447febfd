# SPDX-License-Identifier: Apache-2.0
"""How gradients and the small sums that ride with them lie in flat buckets; pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

FIRST_BUCKET_BYTES = 1024 * 1024
BUCKET_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Slice:
    """A tensor's place in a bucket."""

    bucket: int
    start: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return _numel(self.shape)


@dataclass(frozen=True)
class BucketLayout:
    """The same on every replica.

    Attributes:
        dtypes, sizes: Of each bucket; sizes in elements.
        parameters: Place of each parameter's gradient.
        extras: Place of each named tensor that rides along.
    """

    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[int, ...]
    parameters: tuple[Slice, ...]
    extras: Mapping[str, Slice]

    @property
    def num_buckets(self) -> int:
        """Buckets."""
        return len(self.sizes)

    def describe(self) -> str:
        """What is summed, in few words."""
        numbers = sum(place.numel for place in self.parameters)
        extras = ", ".join(f"{name} {list(place.shape)}" for name, place in self.extras.items())
        return f"{len(self.parameters)} gradients of {numbers} numbers, and {extras or 'nothing else'}"


def plan_buckets(
    parameters: Sequence[tuple[torch.dtype, tuple[int, ...]]],
    extras: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    bucket_bytes: int = BUCKET_BYTES,
) -> BucketLayout:
    """Fill buckets in the order in which a backward pass tends to finish gradients: last parameter first.

    The first bucket is small, so that the first message starts early. Extras lie in the last bucket of their
    dtype, which closes when the backward pass is over; a dtype that no parameter has gets a bucket of its own.
    """
    dtypes: list[torch.dtype] = []
    sizes: list[int] = []
    open_bucket: dict[torch.dtype, int] = {}
    places: list[Slice | None] = [None] * len(parameters)

    def place(dtype: torch.dtype, shape: tuple[int, ...], limit_bytes: int | None) -> Slice:
        bucket = open_bucket.get(dtype)
        numel = _numel(shape)
        full = (
            bucket is not None
            and limit_bytes is not None
            and sizes[bucket] > 0
            and ((sizes[bucket] + numel) * dtype.itemsize > limit_bytes)
        )
        if bucket is None or full:
            bucket = len(sizes)
            dtypes.append(dtype)
            sizes.append(0)
            open_bucket[dtype] = bucket
        start = sizes[bucket]
        sizes[bucket] += numel
        return Slice(bucket, start, shape)

    for index in reversed(range(len(parameters))):
        dtype, shape = parameters[index]
        first = len(sizes) <= 1
        places[index] = place(dtype, shape, min(FIRST_BUCKET_BYTES, bucket_bytes) if first else bucket_bytes)
    extra_places = {name: place(dtype, shape, None) for name, (dtype, shape) in extras.items()}
    return BucketLayout(
        dtypes=tuple(dtypes),
        sizes=tuple(sizes),
        parameters=tuple(slot for slot in places if slot is not None),
        extras=extra_places,
    )


def chunk(numel: int, index: int, count: int) -> tuple[int, int]:
    """Start and end of part `index` of `count` nearly equal parts of `numel` elements.

    >>> [chunk(10, i, 3) for i in range(3)]
    [(0, 4), (4, 8), (8, 10)]
    """
    size = -(-numel // count)
    return min(index * size, numel), min((index + 1) * size, numel)


def _numel(shape: Sequence[int]) -> int:
    numel = 1
    for size in shape:
        numel *= size
    return numel
