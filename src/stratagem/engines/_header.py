# SPDX-License-Identifier: Apache-2.0
"""What a replica is about to do in a collective, so that a mismatch is an error that names both sides."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import CollectiveMismatchError, StructureMismatchError

__all__ = ["Header", "callers_line", "check_agreement", "describe"]

_LOW_BITS = 2**62 - 1
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# contextlib stands between a `with` and us.
_NOT_USERS = (_OURS + os.sep, contextlib.__file__)


@dataclass(frozen=True)
class Header:
    """One replica's part of one collective.

    Attributes:
        operation: The collective with its options, such as "all_reduce(SUM)"; equal on all replicas.
        specs: Dtype and shape of each tensor.
        where: The user's line that called it, such as "train.py:12".
        free_axis: The axis along which sizes may differ between replicas.
        details: More that others need to read the tensors.
        source: The only replica that brings tensors, if there is but one.
        run: Inside `strategy.run`, which call of it this is; else 0.
        taken: How many items this replica has taken, of those that another one hands out without a collective.
    """

    operation: str
    specs: tuple[tuple[Any, tuple[int, ...]], ...] = ()
    where: str = ""
    free_axis: int | None = None
    details: Any = field(default=None, compare=False)
    source: int | None = None
    run: int = 0
    taken: int = 0

    def digest(self) -> tuple[int, int]:
        """Two numbers of 62 bits that are equal for headers that agree in all but the line."""
        told = repr((self.operation, self.specs, self.free_axis, self.source, self.run, self.taken))
        both = int.from_bytes(hashlib.blake2b(told.encode(), digest_size=16).digest())
        return both & _LOW_BITS, (both >> 64) & _LOW_BITS

    def __str__(self) -> str:
        tensors = ", ".join(describe(dtype, shape) for dtype, shape in self.specs[:4])
        more = f", and {len(self.specs) - 4} more" if len(self.specs) > 4 else ""
        of = f" of {tensors}{more}" if self.specs else ""
        at = f" at {self.where}" if self.where else ""
        run = f" in call {self.run} of strategy.run" if self.run else ""
        return f"{self.operation}{of}{at}{run}"


def describe(dtype: Any, shape: Sequence[int]) -> str:
    """A tensor's kind in few characters.

    >>> describe("torch.float32", (2, 3))
    'float32[2, 3]'
    """
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def callers_line(libraries: tuple[str, ...] = ()) -> str:
    """The innermost line of the call stack that is the user's own, as "file.py:12".

    Args:
        libraries: Folders of libraries that call us from their own code, each with a separator at its end.
    """
    skipped = _NOT_USERS + libraries
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def check_agreement(headers: Sequence[Header], replicas: Sequence[int] | None = None) -> None:
    """Raise, with the same text on every replica, if the replicas' headers don't fit together.

    Args:
        headers: What they are about to do.
        replicas: Whose they are, by number; all of them in order if not given.

    Raises:
        CollectiveMismatchError: they called different collectives.
        StructureMismatchError: they brought tensors of different number, dtype or shape.
    """
    first = headers[0]
    for replica, other in zip(replicas or range(len(headers)), headers, strict=True):
        if (other.operation, other.run) != (first.operation, first.run):
            raise CollectiveMismatchError(
                f"replica 0 called {first}, while replica {replica} called {other}",
                fix="make every replica call the same collectives in the same order",
            )
        if other.taken != first.taken:
            raise CollectiveMismatchError(
                f"replica 0 called {first} after {first.taken} batches, while replica {replica} called {other} after "
                f"{other.taken}",
                fix="make every replica take the same number of elements of a data set",
            )
        if not _fits(first, other):
            raise StructureMismatchError(
                f"in {first.operation}, replica 0 has {_tensors(first)} but replica {replica} has {_tensors(other)}",
                fix="bring tensors of the same number, dtype and shape"
                if first.free_axis is None
                else f"bring tensors that differ in size along axis {first.free_axis} only",
            )


def _fits(first: Header, other: Header) -> bool:
    return first.source is not None or _fixed(first) == _fixed(other)


def _fixed(header: Header) -> list[tuple[Any, tuple[int, ...]]]:
    """What must be equal on all replicas of dtypes and shapes; a free axis counts as 0."""
    axis = header.free_axis
    if axis is None:
        return list(header.specs)
    return [
        (dtype, tuple(0 if dim == axis % len(shape) else size for dim, size in enumerate(shape)))
        for dtype, shape in header.specs
    ]


def _tensors(header: Header) -> str:
    at = f" (at {header.where})" if header.where else ""
    return (", ".join(describe(dtype, shape) for dtype, shape in header.specs) or "no tensor") + at
