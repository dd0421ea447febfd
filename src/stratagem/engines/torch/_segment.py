# SPDX-License-Identifier: Apache-2.0
"""Memory shared by the processes of one host, with no name that could outlive them.

A segment is a memfd: its owner tells the others its pid and descriptor, and they open it through /proc.
When the last process ends, however it ends, the memory is gone.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
from dataclasses import dataclass

import torch

_ALIGNMENT_BYTES = 64


def supported() -> bool:
    """Whether segments, and the ordering of stores that the flags in them rely on, exist here."""
    # Python offers no memory fence; x86-64 keeps stores in order by itself.
    return sys.platform == "linux" and platform.machine() == "x86_64" and hasattr(os, "memfd_create")


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up so that what follows starts on a cache line of its own."""
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


@dataclass(frozen=True)
class Handle:
    """What another process needs to open a segment; picklable."""

    pid: int
    fd: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.fd}:{self.num_bytes}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """The handle that `str` wrote."""
        pid, fd, num_bytes = (int(part) for part in text.split(":"))
        return cls(pid, fd, num_bytes)


class Segment:
    """A block of shared memory, as views of it in tensors.

    Args:
        memory: The mapping; tensors made by `tensor` keep it alive.
        handle: How others open it.
        owned_fd: The descriptor to close with the segment, if this process made it.
    """

    def __init__(self, memory: mmap.mmap, handle: Handle, owned_fd: int | None) -> None:
        self._memory = memory
        self._owned_fd = owned_fd
        self.handle = handle

    @classmethod
    def create(cls, num_bytes: int, name: str) -> Segment:
        """A new segment filled with zeros."""
        num_bytes = max(aligned(num_bytes), _ALIGNMENT_BYTES)
        fd = os.memfd_create(f"stratagem-{name}", os.MFD_CLOEXEC)
        os.ftruncate(fd, num_bytes)
        return cls(mmap.mmap(fd, num_bytes), Handle(os.getpid(), fd, num_bytes), fd)

    @classmethod
    def open(cls, handle: Handle) -> Segment:
        """The segment that another process made."""
        fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(mmap.mmap(fd, handle.num_bytes), handle, None)
        finally:
            os.close(fd)

    def tensor(self, dtype: torch.dtype, offset_bytes: int, numel: int) -> torch.Tensor:
        """A flat tensor of `numel` elements that starts at `offset_bytes`."""
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=numel, offset=offset_bytes)

    def write(self, offset_bytes: int, data: bytes) -> None:
        """Copy `data` into the segment."""
        self._memory[offset_bytes : offset_bytes + len(data)] = data

    def read(self, offset_bytes: int, num_bytes: int) -> bytes:
        """A copy of a part of the segment."""
        return self._memory[offset_bytes : offset_bytes + num_bytes]

    def close(self) -> None:
        """Give up the descriptor; the memory goes with the last tensor that views it."""
        if self._owned_fd is not None:
            os.close(self._owned_fd)
            self._owned_fd = None
