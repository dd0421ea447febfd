# SPDX-License-Identifier: Apache-2.0
"""What a replica is about to do in a collective, so that a mismatch is an error that names both sides."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import torch

from stratagem.errors import CollectiveMismatchError, StructureMismatchError

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Keras and torch call us from their own code: optimizers, backward passes. contextlib stands between a `with` and us.
_NOT_USERS = (
    *(folder + os.sep for folder in (_OURS, *keras.__path__, *torch.__path__)),
    contextlib.__file__,
)


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
    """

    operation: str
    specs: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = ()
    where: str = ""
    free_axis: int | None = None
    details: Any = field(default=None, compare=False)
    source: int | None = None
    run: int = 0

    def __str__(self) -> str:
        tensors = ", ".join(describe(dtype, shape) for dtype, shape in self.specs[:4])
        more = f", and {len(self.specs) - 4} more" if len(self.specs) > 4 else ""
        of = f" of {tensors}{more}" if self.specs else ""
        at = f" at {self.where}" if self.where else ""
        run = f" in call {self.run} of strategy.run" if self.run else ""
        return f"{self.operation}{of}{at}{run}"


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
    """The innermost line of the call stack that is the user's own, as "file.py:12"."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
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
        if (other.operation, other.run) != (first.operation, first.run):
            raise CollectiveMismatchError(
                f"replica 0 called {first}, while replica {replica} called {other}",
                fix="make every replica call the same collectives in the same order",
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


def _fixed(header: Header) -> list[tuple[torch.dtype, tuple[int, ...]]]:
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
