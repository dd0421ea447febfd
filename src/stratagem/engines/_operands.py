# SPDX-License-Identifier: Apache-2.0
"""What a tensor must be for a collective to take it."""

from __future__ import annotations

from typing import Any

from stratagem._core.enums import Reduction
from stratagem.engines._header import describe
from stratagem.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_axis", "check_reducible"]


def check_reducible(op: Reduction, tensor: Any) -> None:
    """Raise ArgumentTypeError for a bool."""
    if str(tensor.dtype).endswith("bool"):
        raise ArgumentTypeError(
            f"{describe(tensor.dtype, tensor.shape)} can't be reduced with {op.name}",
            fix="cast it to an integer or float type first",
        )


def check_axis(tensor: Any, axis: int) -> None:
    """Raise ArgumentError if there is no such axis to gather along."""
    if tensor.ndim == 0:
        raise ArgumentError("a scalar can't be gathered: it has no axis", fix="give it one: tensor[None]")
    if not -tensor.ndim <= axis < tensor.ndim:
        raise ArgumentError(
            f"axis {axis} does not exist in {describe(tensor.dtype, tensor.shape)}",
            fix=f"use an axis from {-tensor.ndim} to {tensor.ndim - 1}",
        )
