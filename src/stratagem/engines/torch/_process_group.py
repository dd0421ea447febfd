# SPDX-License-Identifier: Apache-2.0
"""Collectives through torch.distributed: NCCL between GPUs, gloo between CPUs that share no memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

from stratagem._core.enums import Reduction
from stratagem.engines.torch._buckets import BucketLayout
from stratagem.engines.torch._header import Header, callers_line, check_agreement
from stratagem.engines.torch._transport import BucketChannel, Transport, mean_of_sum
from stratagem.errors import CollectiveTimeoutError, ReplicaFailedError

T = TypeVar("T")

_OPS = {
    Reduction.SUM: dist.ReduceOp.SUM,
    # gloo has no mean, and NCCL's rounds integers; sum and divide.
    Reduction.MEAN: dist.ReduceOp.SUM,
    Reduction.MIN: dist.ReduceOp.MIN,
    Reduction.MAX: dist.ReduceOp.MAX,
}


class ProcessGroupTransport(Transport):
    """Collectives through two process groups.

    Args:
        control: A gloo group; headers and objects travel on it.
        data: The group for tensors on `device`; the same as `control` on a CPU.
        device: Where this replica's tensors are.
        store: The rendezvous store, where each replica notes what it is doing.
        timeout_seconds: As given to the groups.
    """

    def __init__(
        self,
        control: dist.ProcessGroup,
        data: dist.ProcessGroup,
        device: torch.device,
        store: dist.Store,
        timeout_seconds: float,
    ) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), store)
        self._control = control
        self._data = data
        self._device = device
        self._notes = store
        self._timeout_seconds = timeout_seconds
        self._number = 0

    def _all_reduce(
        self, header: Header, reduction: Reduction, tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        self._agree(header)
        return [self._reduce_one(header, reduction, tensor.detach()) for tensor in tensors]

    def _reduce_one(self, header: Header, reduction: Reduction, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype in (torch.float16, torch.bfloat16) and reduction in (Reduction.SUM, Reduction.MEAN):
            total = self._reduce_one(header, reduction, tensor.float())
            return total.to(tensor.dtype)
        total = tensor.clone().contiguous()
        self.guard(str(header), lambda: dist.all_reduce(total, _OPS[reduction], group=self._data))
        return mean_of_sum(total, self.world_size) if reduction is Reduction.MEAN else total

    @contextmanager
    def _swap(self, header: Header, tensors: Sequence[torch.Tensor]) -> Iterator[list[list[torch.Tensor]]]:
        headers = self._agree(header)
        if header.source is not None:
            yield self._from_source(header, headers[header.source], tensors)
            return
        parts: list[list[torch.Tensor]] = [[] for _ in headers]
        for index, tensor in enumerate(tensors):
            shapes = [other.specs[index][1] for other in headers]
            # Sent at the largest size and cut afterwards: the groups gather equal sizes only.
            numel = max(torch.Size(shape).numel() for shape in shapes)
            sent = torch.zeros(numel, dtype=tensor.dtype, device=self._device)
            sent[: tensor.numel()] = tensor.detach().reshape(-1)
            received = [torch.empty_like(sent) for _ in headers]
            self._gather(header, received, sent)
            for rank, shape in enumerate(shapes):
                parts[rank].append(received[rank][: torch.Size(shape).numel()].view(shape))
        yield parts

    def _from_source(
        self, header: Header, theirs: Header, tensors: Sequence[torch.Tensor]
    ) -> list[list[torch.Tensor]]:
        source = header.source
        assert source is not None, "asked by the caller"
        received = []
        for index, (dtype, shape) in enumerate(theirs.specs):
            tensor = (
                tensors[index].to(self._device).contiguous()
                if self.rank == source
                else torch.empty(shape, dtype=dtype, device=self._device)
            )
            self.guard(str(header), lambda tensor=tensor: dist.broadcast(tensor, source, group=self._data))
            received.append(tensor)
        return [received if rank == source else [] for rank in range(self.world_size)]

    def _gather(self, header: Header, received: list[torch.Tensor], sent: torch.Tensor) -> None:
        if sent.numel():
            self.guard(str(header), lambda: dist.all_gather(received, sent, group=self._data))

    def _agree(self, header: Header) -> list[Header]:
        self._number += 1
        self._notes.set(f"doing/{self.rank}", f"{self._number}:{header}")
        headers: list[Header] = [header] * self.world_size
        self.guard(str(header), lambda: dist.all_gather_object(headers, header, group=self._control))
        check_agreement(headers)
        return headers

    def guard(self, what: str, call: Callable[[], T]) -> T:
        """`call()`, with torch's errors about other replicas turned into ours."""
        try:
            return call()
        except RuntimeError as error:
            if "imed out" in str(error) or "imeout" in str(error):
                raise CollectiveTimeoutError(
                    f"replica {self.rank} waited {self._timeout_seconds:g} seconds in {what}; {self._others()}",
                    fix="make every replica call the same collectives in the same order",
                ) from error
            raise ReplicaFailedError(
                f"replica {self.rank} lost another replica in {what}: {error}; {self._others()}",
                fix="read the last lines that the other replicas printed",
            ) from error

    def _others(self) -> str:
        notes = []
        for rank in range(self.world_size):
            if rank != self.rank:
                key = f"doing/{rank}"
                number, _, text = self._notes.get(key).decode().partition(":") if self._notes.check([key]) else "0::"
                notes.append(f"replica {rank} was last in its collective {number}, {text or 'none'}")
        return "; ".join(notes) + f" (this is number {self._number})"

    def bucket_channel(self, layout: BucketLayout) -> BucketChannel:
        return _GroupBuckets(self, self._data, self._device, layout)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            # Fails when the store's host is gone; then nobody is left to read the note.
            self._notes.set(f"doing/{self.rank}", f"{self._number + 1}:the end of its program")


class _GroupBuckets(BucketChannel):
    """Asynchronous all-reduces, started in bucket order on every replica."""

    def __init__(
        self, transport: ProcessGroupTransport, group: dist.ProcessGroup, device: torch.device, layout: BucketLayout
    ) -> None:
        self._transport = transport
        self._group = group
        self._buckets = [
            torch.zeros(size, dtype=dtype, device=device)
            for dtype, size in zip(layout.dtypes, layout.sizes, strict=True)
        ]
        self._ready: set[int] = set()
        self._next = 0
        self._works: list[dist.Work] = []

    def local(self, bucket: int) -> torch.Tensor:
        return self._buckets[bucket]

    def post(self, bucket: int) -> None:
        # The order in which buckets are full can differ between replicas; that of the messages must not.
        self._ready.add(bucket)
        while self._next in self._ready:
            buffer = self._buckets[self._next]
            work = self._transport.guard(
                "the gradients", lambda buffer=buffer: dist.all_reduce(buffer, group=self._group, async_op=True)
            )
            assert work is not None, "asynchronous, and this process is in the group"
            self._works.append(work)
            self._next += 1

    def finish(self) -> None:
        assert self._next == len(self._buckets), "every bucket has been posted"
        what = f"the gradients at {callers_line()}"
        for work in self._works:
            self._transport.guard(what, work.wait)
        self._works.clear()
        self._ready.clear()
        self._next = 0

    def total(self, bucket: int) -> torch.Tensor:
        return self._buckets[bucket]
