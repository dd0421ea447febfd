# SPDX-License-Identifier: Apache-2.0
"""What carries collectives between the replicas' processes.

The public methods check that all replicas agree and hold the arithmetic; a transport only moves tensors.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from stratagem._core.enums import Reduction
from stratagem.engines._handing_out import Said
from stratagem.engines._operands import check_axis, check_reducible
from stratagem.engines.torch._buckets import BUCKET_BYTES, BucketLayout
from stratagem.engines.torch._header import Header, callers_line, specs_of
from stratagem.errors import StructureMismatchError

HALF = (torch.float16, torch.bfloat16)


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
    """The collectives of one job, from the point of view of one replica.

    Attributes:
        bucket_bytes: The size of one message of gradients that is aimed at.
        before_run: Called before each call of `strategy.run`.
    """

    def __init__(self, rank: int, world_size: int, store: dist.Store | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.bucket_bytes = BUCKET_BYTES
        self.before_run: Callable[[], None] = _nothing
        self._store = store
        self._runs = 0
        self._run = 0
        self._taken = 0

    @property
    def is_in_run(self) -> bool:
        """Whether a call of `strategy.run` is under way."""
        return self._run > 0

    def begin_run(self) -> int:
        """A call of `strategy.run` begins: collectives meet those of the same call on other replicas only.

        Returns:
            What `end_run` is to be told.
        """
        self.before_run()
        self._runs += 1
        outer, self._run = self._run, self._runs
        return outer

    def end_run(self, outer: int) -> None:
        """It has ended."""
        self._run = outer

    def count(self, name: str, add: int) -> int:
        """Add to a counter that all replicas see, and return it. Not a collective: never waits."""
        assert self._store is not None, "a replica that is alone has nobody to count for"
        return self._store.add(f"count/{name}", add)

    def all_reduce(self, reduction: Reduction, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Reduce each tensor over all replicas."""
        for tensor in tensors:
            check_reducible(reduction, tensor)
        header = self._header(f"all_reduce({reduction.name})", tensors)
        return self._all_reduce(header, reduction, tensors)

    def all_gather(self, tensors: Sequence[torch.Tensor], axis: int) -> list[torch.Tensor]:
        """Concatenate each tensor over replicas along `axis`, in replica order."""
        for tensor in tensors:
            check_axis(tensor, axis)
        header = self._header(f"all_gather(axis={axis})", tensors, free_axis=axis)
        with self._swap(header, tensors) as parts:
            return [torch.cat([part[i] for part in parts], dim=axis) for i in range(len(tensors))]

    def all_gather_object(self, value: object) -> list[Any]:
        """One picklable object per replica, in replica order."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        header = self._header("all_gather_object", [data], free_axis=0)
        with self._swap(header, [data]) as parts:
            return [pickle.loads(part[0].cpu().numpy().tobytes()) for part in parts]

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> list[torch.Tensor]:
        """Replica `source`'s tensors."""
        header = self._header(f"broadcast(source={source})", tensors)
        with self._swap(header, tensors) as parts:
            return [tensor.clone() for tensor in parts[source]]

    @contextmanager
    def from_source(
        self, source: int, value: object, tensors: Sequence[torch.Tensor], what: str
    ) -> Iterator[tuple[Any, list[torch.Tensor]]]:
        """What replica `source` brought: a picklable value and tensors of any number, readable inside the block.

        The other replicas' `value` and `tensors` are not looked at. `what` names it all in errors.
        """
        brought: list[torch.Tensor] = []
        if self.rank == source:
            brought = [torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), *tensors]
        header = self._header(f"taking {what} from replica {source}", brought, source=source)
        with self._swap(header, brought) as parts:
            pickled, *rest = parts[source]
            yield value if self.rank == source else pickle.loads(pickled.cpu().numpy().tobytes()), rest

    def hand_out(
        self, pickled: Iterator[tuple[Said, bytes]] | None, source: int, what: str, depth: int
    ) -> Iterator[Said] | None:
        """What is said by replica `source`, in all replicas; a collective, after which none is needed for each item.

        Args:
            pickled: In replica `source`, where it is read in a thread; None elsewhere.
            source: A replica.
            what: Names an item in errors.
            depth: The most items that wait.

        Returns:
            None where a collective for each item is as good as any other way.
        """
        del pickled, source, what, depth
        return None

    def barrier(self, name: str) -> None:
        """Return once every replica has come here."""
        with self._swap(self._header(f"barrier({name!r})", []), []):
            return

    def bucket_channel(self, layout: BucketLayout) -> BucketChannel:
        """A channel for `layout`; a collective.

        Raises:
            StructureMismatchError: the layouts differ between replicas.
        """
        for replica, theirs in enumerate(self.all_gather_object(layout)):
            if theirs != layout:
                raise StructureMismatchError(
                    f"replica {self.rank} wants to sum {layout.describe()} at {callers_line()}, "
                    f"but replica {replica} wants to sum {theirs.describe()}",
                    fix="make the same model, with the same metrics, in every process",
                )
        return self._bucket_channel(layout)

    def _header(self, operation: str, tensors: Sequence[torch.Tensor], **options: Any) -> Header:
        return Header(operation, specs_of(tensors), callers_line(), run=self._run, taken=self._taken, **options)

    @abstractmethod
    def _all_reduce(self, header: Header, reduction: Reduction, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`all_reduce` after the local checks."""

    @abstractmethod
    @contextmanager
    def _swap(self, header: Header, tensors: Sequence[torch.Tensor]) -> Iterator[list[list[torch.Tensor]]]:
        """All replicas' tensors, readable inside the block; raises where the replicas' headers don't agree."""

    @abstractmethod
    def _bucket_channel(self, layout: BucketLayout) -> BucketChannel:
        """`bucket_channel` after the check."""

    @abstractmethod
    def close(self, *, failed: bool = False) -> None:
        """Leave the job; `failed` if this replica's program has."""


def _nothing() -> None:
    pass


def reduce_parts(reduction: Reduction, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Reduce one tensor's copies, in replica order, so that every replica computes the same bits."""
    kept = parts[0].dtype
    dtype = reduced_in(reduction, kept)
    if reduction in (Reduction.MIN, Reduction.MAX):
        pick = torch.minimum if reduction is Reduction.MIN else torch.maximum
        result = parts[0].clone()
        for part in parts[1:]:
            result = pick(result, part)
        return result
    result = parts[0].to(dtype, copy=True)
    for part in parts[1:]:
        result += part
    if reduction is Reduction.MEAN:
        result = mean_of_sum(result, len(parts))
    return result.to(kept) if kept in HALF else result


def reduced_in(reduction: Reduction, dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute a reduction in: wider than half types, and as TensorFlow for the mean of integers."""
    if reduction in (Reduction.MIN, Reduction.MAX):
        return dtype
    if dtype in HALF:
        return torch.float32
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    return torch.float64 if is_integer and reduction is Reduction.MEAN else dtype


def mean_of_sum(total: torch.Tensor, count: int) -> torch.Tensor:
    """A sum divided by `count`."""
    return total / count
