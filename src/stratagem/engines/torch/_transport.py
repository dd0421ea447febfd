# SPDX-License-Identifier: Apache-2.0
"""What carries collectives between the replicas' processes.

The public methods check that all replicas agree and hold the arithmetic; a transport only moves tensors.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from stratagem._core.enums import Reduction
from stratagem.engines.torch._buckets import BucketLayout
from stratagem.engines.torch._header import Header, callers_line, describe, specs_of
from stratagem.errors import ArgumentError, ArgumentTypeError, StructureMismatchError

_HALF = (torch.float16, torch.bfloat16)


class BucketChannel(ABC):
    """Flat buffers that are summed over replicas step after step, one bucket at a time."""

    @abstractmethod
    def local(self, bucket: int) -> torch.Tensor:
        """Where this replica writes its part of a bucket."""

    @abstractmethod
    def post(self, bucket: int) -> None:
        """The bucket is written; its sum may begin. Never waits."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for the sums of all buckets.

        Raises:
            CollectiveTimeoutError: a replica did not post in time.
            ReplicaFailedError: a replica's process died.
        """

    @abstractmethod
    def total(self, bucket: int) -> torch.Tensor:
        """A bucket's sum after `finish`; valid until the next `post`, and not to be written to."""


class Transport(ABC):
    """The collectives of one job, from the point of view of one replica."""

    def __init__(self, rank: int, world_size: int, store: dist.Store | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store

    def count(self, name: str, add: int) -> int:
        """Add to a counter that all replicas see, and return it. Not a collective: never waits."""
        assert self._store is not None, "a replica that is alone has nobody to count for"
        return self._store.add(f"count/{name}", add)

    def all_reduce(self, reduction: Reduction, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Reduce each tensor over all replicas."""
        for tensor in tensors:
            _check_reducible(reduction, tensor)
        header = Header(f"all_reduce({reduction.name})", specs_of(tensors), callers_line())
        return self._all_reduce(header, reduction, tensors)

    def all_gather(self, tensors: Sequence[torch.Tensor], axis: int) -> list[torch.Tensor]:
        """Concatenate each tensor over replicas along `axis`, in replica order."""
        for tensor in tensors:
            _check_axis(tensor, axis)
        header = Header(f"all_gather(axis={axis})", specs_of(tensors), callers_line(), same_shapes=False)
        with self._swap(header, tensors) as parts:
            return [_concatenate([part[i] for part in parts], axis) for i in range(len(tensors))]

    def all_gather_object(self, value: object) -> list[Any]:
        """One picklable object per replica, in replica order."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        header = Header("all_gather_object", specs_of([data]), callers_line(), same_shapes=False)
        with self._swap(header, [data]) as parts:
            return [pickle.loads(part[0].cpu().numpy().tobytes()) for part in parts]

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> list[torch.Tensor]:
        """Replica `source`'s tensors."""
        header = Header(f"broadcast(source={source})", specs_of(tensors), callers_line())
        with self._swap(header, tensors) as parts:
            return [tensor.clone() for tensor in parts[source]]

    @contextmanager
    def from_source(
        self, source: int, value: object, tensors: Sequence[torch.Tensor]
    ) -> Iterator[tuple[Any, list[torch.Tensor]]]:
        """What replica `source` brought: a picklable value and tensors of any number, readable inside the block.

        The other replicas' `value` and `tensors` are not looked at.
        """
        brought: list[torch.Tensor] = []
        if self.rank == source:
            brought = [torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), *tensors]
        header = Header(f"from_source({source})", specs_of(brought), source=source)
        with self._swap(header, brought) as parts:
            pickled, *rest = parts[source]
            yield value if self.rank == source else pickle.loads(pickled.cpu().numpy().tobytes()), rest

    def barrier(self, name: str) -> None:
        """Return once every replica has come here."""
        with self._swap(Header(f"barrier({name!r})"), []):
            return

    @abstractmethod
    def _all_reduce(
        self, header: Header, reduction: Reduction, tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """`all_reduce` after the local checks."""

    @abstractmethod
    @contextmanager
    def _swap(self, header: Header, tensors: Sequence[torch.Tensor]) -> Iterator[list[list[torch.Tensor]]]:
        """All replicas' tensors, readable inside the block; raises where the replicas' headers don't agree."""

    @abstractmethod
    def bucket_channel(self, layout: BucketLayout) -> BucketChannel:
        """A channel for `layout`; a collective, and the layout must be equal on all replicas."""

    @abstractmethod
    def close(self) -> None:
        """Leave the job."""


def reduce_parts(reduction: Reduction, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Reduce one tensor's copies, in replica order, so that every replica computes the same bits."""
    dtype = parts[0].dtype
    if reduction in (Reduction.MIN, Reduction.MAX):
        pick = torch.minimum if reduction is Reduction.MIN else torch.maximum
        result = parts[0].clone()
        for part in parts[1:]:
            result = pick(result, part)
        return result
    result = parts[0].to(torch.float32 if dtype in _HALF else dtype, copy=True)
    for part in parts[1:]:
        result += part
    if reduction is Reduction.MEAN:
        result = mean_of_sum(result, len(parts))
    return result.to(dtype) if dtype in _HALF else result


def mean_of_sum(total: torch.Tensor, count: int) -> torch.Tensor:
    """A sum divided by `count`; integers become float64, as TensorFlow does it."""
    if not (total.is_floating_point() or total.is_complex()):
        total = total.to(torch.float64)
    return total / count


def _check_reducible(reduction: Reduction, tensor: torch.Tensor) -> None:
    if tensor.dtype == torch.bool:
        raise ArgumentTypeError(
            f"{describe(tensor.dtype, tensor.shape)} can't be reduced with {reduction.name}",
            fix="cast it to an integer or float type first",
        )


def _check_axis(tensor: torch.Tensor, axis: int) -> None:
    if tensor.ndim == 0:
        raise ArgumentError("a scalar can't be gathered: it has no axis", fix="give it one: tensor[None]")
    if not -tensor.ndim <= axis < tensor.ndim:
        raise ArgumentError(
            f"axis {axis} does not exist in {describe(tensor.dtype, tensor.shape)}",
            fix=f"use an axis from {-tensor.ndim} to {tensor.ndim - 1}",
        )


def _concatenate(parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    axis %= parts[0].ndim
    shapes = [tuple(size for dim, size in enumerate(part.shape) if dim != axis) for part in parts]
    for replica, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise StructureMismatchError(
                f"shapes can differ along axis {axis} only, but replica 0 has {tuple(parts[0].shape)} "
                f"and replica {replica} has {tuple(parts[replica].shape)}",
                fix="gather along the axis in which they differ",
            )
    return torch.cat(list(parts), dim=axis)
