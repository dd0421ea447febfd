# SPDX-License-Identifier: Apache-2.0
"""Collectives through torch.distributed: NCCL between GPUs, gloo between CPUs that share no memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

from stratagem._core.enums import Reduction
from stratagem.engines import _lost
from stratagem.engines._progress import PROGRESS
from stratagem.engines._pulse import BEAT_SECONDS, Pulse, Sign
from stratagem.engines.torch._buckets import BucketLayout
from stratagem.engines.torch._header import Header, callers_line, check_agreement
from stratagem.engines.torch._segment import aligned
from stratagem.engines.torch._transport import HALF, BucketChannel, Transport, mean_of_sum, reduce_parts, reduced_in
from stratagem.errors import ReplicaFailedError, StratagemError

T = TypeVar("T")

# Through sockets a message costs more than the moment by which a smaller one would begin earlier.
_BUCKET_BYTES = 32 * 1024 * 1024
_DEATH_SECONDS = 1.0
_BEATS = 1.5


class ProcessGroupTransport(Transport):
    """Collectives through two process groups.

    Args:
        control: A gloo group; headers and objects travel on it.
        data: The group for tensors on `device`; the same as `control` on a CPU.
        device: Where this replica's tensors are.
        store: The rendezvous store.
        pulse: What it hears of the other replicas.
        far: Some replicas run on other hosts, whose processes can't be looked at.
        timeout_seconds: As given to the groups.
    """

    def __init__(
        self,
        control: dist.ProcessGroup,
        data: dist.ProcessGroup,
        device: torch.device,
        store: dist.Store,
        pulse: Pulse,
        timeout_seconds: float,
        *,
        far: bool = False,
    ) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), store)
        self._control = control
        self._data = data
        self._device = device
        self._pulse = pulse
        self._name = pulse.names[pulse.rank]
        self._timeout_seconds = timeout_seconds
        self._far = far
        self._number = 0
        self.bucket_bytes = _BUCKET_BYTES
        self.note("its start")

    def note(self, what: str) -> None:
        """Let the others know of this replica's next collective."""
        PROGRESS.number, PROGRESS.doing = self._number, what
        self._number += 1

    def _all_reduce(self, header: Header, reduction: Reduction, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if reduction in (Reduction.MIN, Reduction.MAX):
            # gloo's extremes forget a NaN.
            with self._swap(header, tensors) as parts:
                return [reduce_parts(reduction, [part[i] for part in parts]) for i in range(len(tensors))]
        self._agree(header)
        results: dict[int, torch.Tensor] = {}
        for dtype, indices in _by_dtype(reduction, tensors).items():
            flat = _joined([tensors[index].detach().reshape(-1) for index in indices], dtype)
            self.guard(str(header), lambda flat=flat: dist.all_reduce(flat, group=self._data))
            # The groups have no mean (gloo), or round that of integers (NCCL).
            total = mean_of_sum(flat, self.world_size) if reduction is Reduction.MEAN else flat
            parts = total.split([tensors[index].numel() for index in indices])
            for index, part in zip(indices, parts, strict=True):
                given = tensors[index]
                # Copied, because views of one tensor would live and change together.
                copy = part.reshape(given.shape) if len(parts) == 1 else part.reshape(given.shape).clone()
                results[index] = copy.to(given.dtype) if given.dtype in HALF else copy
        return [results[index] for index in range(len(tensors))]

    @contextmanager
    def _swap(self, header: Header, tensors: Sequence[torch.Tensor]) -> Iterator[list[list[torch.Tensor]]]:
        headers = self._agree(header)
        sizes = [_packed_bytes(other) for other in headers]
        if header.source is not None:
            packed = self._packed(header, tensors, sizes[header.source])
            if packed.numel():
                self.guard(str(header), lambda: dist.broadcast(packed, header.source, group=self._data))
            yield [_unpacked(other, packed) if rank == header.source else [] for rank, other in enumerate(headers)]
            return
        # Sent at the largest size: the groups gather equal sizes only.
        mine = self._packed(header, tensors, max(sizes))
        received = [torch.empty_like(mine) for _ in headers]
        if mine.numel():
            self.guard(str(header), lambda: dist.all_gather(received, mine, group=self._data))
        yield [_unpacked(other, packed) for other, packed in zip(headers, received, strict=True)]

    def _packed(self, header: Header, tensors: Sequence[torch.Tensor], num_bytes: int) -> torch.Tensor:
        """The bytes of all tensors in one message; the tensors themselves stay what the header says."""
        packed = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        for place, tensor in zip(_unpacked(header, packed), tensors, strict=True):
            place.copy_(tensor.detach())
        return packed

    def _agree(self, header: Header) -> list[Header]:
        self.note(str(header))
        headers: list[Header] = [header] * self.world_size
        if self._same_on_all(header):
            return headers
        self.guard(str(header), lambda: dist.all_gather_object(headers, header, group=self._control))
        check_agreement(headers)
        return headers

    def _same_on_all(self, header: Header) -> bool:
        """Whether all replicas bring equal headers, by one small message; the same answer on all."""
        mine = torch.tensor(header.digest())
        theirs = [torch.empty_like(mine) for _ in range(self.world_size)]
        # Gathered, because gloo ends the process where a sum would meet the gradients of a replica that is elsewhere.
        self.guard(str(header), lambda: dist.all_gather(theirs, mine, group=self._control))
        return all(torch.equal(mine, other) for other in theirs)

    def guard(self, what: str, call: Callable[[], T]) -> T:
        """`call()`, with torch's errors about other replicas turned into ours."""
        started = time.monotonic()
        try:
            return call()
        except RuntimeError as error:
            seconds = time.monotonic() - started
            if self._pulse.lost is not None:
                raise self._pulse.raised() from error
            if "imed out" in str(error) or "imeout" in str(error):
                raise self._late(what, self._timeout_seconds) from error
            raise self._broken(what, seconds, str(error)) from error

    def _broken(self, what: str, seconds: float, problem: str) -> StratagemError:
        """The error about whoever broke a connection."""
        if (lost := self._pulse.whoever_broke(what) if self._far else None) is not None:
            return lost
        # A process that is killed loses its connections a moment before it counts as dead.
        begun = time.monotonic()
        while time.monotonic() < begun + _DEATH_SECONDS:
            signs = self._others()
            for rank, sign in signs.items():
                if sign.died:
                    return _lost.died(self._pulse.names[rank], sign.pid, self._name, what)
            if time.monotonic() < begun + _BEATS * BEAT_SECONDS:
                # What the others were doing a moment ago may not be told yet.
                time.sleep(BEAT_SECONDS / 6)
                continue
            gone, behind = [rank for rank, sign in signs.items() if sign.left], self._behind(signs)
            if gone and behind and not behind.keys() & set(gone):
                # Who left had waited as this replica does, for the same one, and had begun earlier.
                return self._late(what, seconds)
            for rank in sorted(gone, key=lambda rank: rank not in behind):
                return _lost.left(self._pulse.names[rank], signs[rank].left == "failed", self._name, what)
            time.sleep(_DEATH_SECONDS / 20)
        return ReplicaFailedError(
            f"{self._name} lost another one in {what}: {problem}",
            fix="read the last lines that the others printed",
        )

    def _late(self, what: str, seconds: float) -> StratagemError:
        signs = self._others()
        missing = {
            self._pulse.names[
                rank
            ]: f"in {sign.doing}, its collective {sign.number} (this is number {self._number - 1})"
            for rank, sign in (self._behind(signs) or signs).items()
        }
        return _lost.late(missing, self.world_size, self._name, what, seconds)

    def _others(self) -> dict[int, Sign]:
        """What the others say now, without those that have said nothing yet."""
        signs = {rank: self._pulse.ask(rank) for rank in range(self.world_size) if rank != self.rank}
        return {rank: sign for rank, sign in signs.items() if sign is not None}

    def _behind(self, signs: dict[int, Sign]) -> dict[int, Sign]:
        """Those of `signs` whose replicas have not come to this replica's collective."""
        return {rank: sign for rank, sign in signs.items() if sign.number < self._number - 1}

    def _bucket_channel(self, layout: BucketLayout) -> BucketChannel:
        return _GroupBuckets(self, self._data, self._device, layout)

    def close(self, *, failed: bool = False) -> None:
        PROGRESS.number, PROGRESS.doing = self._number, "the end of its program"


def _packed_bytes(header: Header) -> int:
    return sum(aligned(torch.Size(shape).numel() * dtype.itemsize) for dtype, shape in header.specs)


def _unpacked(header: Header, packed: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a header tells of, as views of their bytes."""
    tensors, at = [], 0
    for dtype, shape in header.specs:
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        tensors.append(packed[at : at + num_bytes].view(dtype).view(shape))
        at += aligned(num_bytes)
    return tensors


def _joined(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """A new tensor, which may be written to."""
    if len(tensors) == 1:
        return tensors[0].to(dtype, copy=True)
    return torch.cat([tensor.to(dtype) for tensor in tensors])


def _by_dtype(reduction: Reduction, tensors: Sequence[torch.Tensor]) -> dict[torch.dtype, list[int]]:
    """Which of the tensors travel together: those that are reduced in one dtype."""
    groups: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(reduced_in(reduction, tensor.dtype), []).append(index)
    return groups


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
        self._transport.note(what)
        for work in self._works:
            self._transport.guard(what, work.wait)
        self._works.clear()
        self._ready.clear()
        self._next = 0

    def total(self, bucket: int) -> torch.Tensor:
        return self._buckets[bucket]
