# SPDX-License-Identifier: Apache-2.0
"""What a replica is about to do in a collective, so that a mismatch is an error that names both sides."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stratagem.errors import CollectiveMismatchError, StructureMismatchError

_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


@dataclass(frozen=True)
class Header:
    """One replica's part of one collective.

    Attributes:
        operation: The collective with its options, such as "all_reduce(SUM)"; equal on all replicas.
        specs: Dtype and shape of each tensor.
        where: The user's line that called it, such as "train.py:12".
        same_shapes: Whether all replicas must bring the same shapes.
        details: More that others need to read the tensors.
        source: The only replica that brings tensors, if there is but one.
    """

    operation: str
    specs: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = ()
    where: str = ""
    same_shapes: bool = True
    details: Any = field(default=None, compare=False)
    source: int | None = None

    def __str__(self) -> str:
        tensors = ", ".join(describe(dtype, shape) for dtype, shape in self.specs[:4])
        more = f", and {len(self.specs) - 4} more" if len(self.specs) > 4 else ""
        of = f" of {tensors}{more}" if self.specs else ""
        at = f" at {self.where}" if self.where else ""
        return f"{self.operation}{of}{at}"


def describe(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """A tensor's kind in few characters.

    >>> describe(torch.float32, (2, 3))
    'float32[2, 3]'
    """
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def specs_of(tensors: Sequence[torch.Tensor]) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
    """Dtype and shape of each tensor."""
    return tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)


def callers_line() -> str:
    """The innermost line of the call stack that is not Stratagem's, as "file.py:12"."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE_DIR):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def check_agreement(headers: Sequence[Header]) -> None:
    """Raise, with the same text on every replica, if the replicas' headers don't fit together.

    Raises:
        CollectiveMismatchError: they called different collectives.
        StructureMismatchError: they brought tensors of different number, dtype or shape.
    """
    first = headers[0]
    for replica, other in enumerate(headers[1:], start=1):
        if other.operation != first.operation:
            raise CollectiveMismatchError(
                f"replica 0 called {first}, while replica {replica} called {other}",
                fix="make every replica call the same collectives in the same order",
            )
        if not _fits(first, other):
            raise StructureMismatchError(
                f"in {first.operation}, replica 0 has {_tensors(first)} but replica {replica} has {_tensors(other)}",
                fix="bring tensors of the same dtype and shape; rows that differ in number need axis=0, or gather",
            )


def _fits(first: Header, other: Header) -> bool:
    if first.source is not None:
        return True
    if first.same_shapes:
        return first.specs == other.specs
    return [(dtype, len(shape)) for dtype, shape in first.specs] == [
        (dtype, len(shape)) for dtype, shape in other.specs
    ]


def _tensors(header: Header) -> str:
    at = f" (at {header.where})" if header.where else ""
    return (", ".join(describe(dtype, shape) for dtype, shape in header.specs) or "no tensor") + at
