# SPDX-License-Identifier: Apache-2.0
"""Memory shared by the processes of one host, with no name that could outlive them.

A segment is a memfd: its owner tells the others its pid and descriptor, and they open it through /proc.
When the last process ends, however it ends, the memory is gone.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np

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
        fd: The descriptor to close with the segment, of one that this process made or that grows.
    """

    def __init__(self, memory: mmap.mmap, handle: Handle, fd: int | None) -> None:
        self._memory = memory
        self._fd = fd
        self._closing = None if fd is None else weakref.finalize(self, os.close, fd)
        self.handle = handle

    @classmethod
    def create(cls, num_bytes: int, name: str) -> Segment:
        """A new segment filled with zeros."""
        num_bytes = max(aligned(num_bytes), _ALIGNMENT_BYTES)
        fd = os.memfd_create(f"stratagem-{name}", os.MFD_CLOEXEC)
        os.ftruncate(fd, num_bytes)
        return cls(mmap.mmap(fd, num_bytes), Handle(os.getpid(), fd, num_bytes), fd)

    @classmethod
    def open(cls, handle: Handle, *, grows: bool = False) -> Segment:
        """The segment that another process made; if it grows, to be closed here too."""
        with contextlib.ExitStack() as closing:
            fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", os.O_RDWR | os.O_CLOEXEC)
            closing.callback(os.close, fd)
            memory = mmap.mmap(fd, handle.num_bytes)
            if grows:
                closing.pop_all()
            return cls(memory, handle, fd if grows else None)

    @property
    def num_bytes(self) -> int:
        """As this process sees it."""
        return len(self._memory)

    def grow(self, num_bytes: int) -> None:
        """Make it longer; what is there stays in place. Only its maker does."""
        assert self._fd is not None
        os.ftruncate(self._fd, num_bytes)
        self.see_growth()

    def see_growth(self) -> None:
        """Reach what its maker has added since it was opened as one that grows."""
        assert self._fd is not None
        self._memory = mmap.mmap(self._fd, 0)  # all of it

    def tensor(self, dtype: torch.dtype, offset_bytes: int, numel: int) -> torch.Tensor:
        """A flat tensor of `numel` elements that starts at `offset_bytes`."""
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=numel, offset=offset_bytes)

    def numbers(self, offset_bytes: int, *shape: int) -> np.ndarray:
        """Counters that start at `offset_bytes`: an array of int64."""
        return self.tensor(torch.int64, offset_bytes, math.prod(shape)).view(shape).numpy()

    def write(self, offset_bytes: int, data: bytes) -> None:
        """Copy `data` into the segment."""
        self._memory[offset_bytes : offset_bytes + len(data)] = data

    def read(self, offset_bytes: int, num_bytes: int) -> bytes:
        """A copy of a part of the segment."""
        return self._memory[offset_bytes : offset_bytes + num_bytes]

    def view(self, offset_bytes: int, num_bytes: int) -> memoryview:
        """A part of the segment itself."""
        return memoryview(self._memory)[offset_bytes : offset_bytes + num_bytes]

    def close(self) -> None:
        """Give up the descriptor; the memory goes with the last tensor that views it."""
        if self._closing is not None:
            self._closing()
