# SPDX-License-Identifier: Apache-2.0
"""State that layers change by themselves while training, such as BatchNormalization's moving statistics.

Each replica computes a change from its own rows, and after the step every replica has the old value plus the mean of
these changes, weighted by rows. No replica keeps a value of its own from one step to the next, so that what is read,
saved or restored between steps is all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stratagem.keras_fit._step import Step
from stratagem.keras_fit._torch._flat import FlatVariables, group_by_dtype


class ReplicaState:
    """The non-trainable floating-point weights of a model over one training step.

    Args:
        variables: Built Keras variables; those of other dtypes are left alone.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._groups = {dtype: FlatVariables(group) for dtype, group in _by_dtype(variables).items()}
        self._before = {dtype: group.values.clone() for dtype, group in self._groups.items()}

    def holds(self, variables: Sequence[Any]) -> bool:
        """Whether this still is about these variables."""
        groups = _by_dtype(variables)
        return groups.keys() == self._groups.keys() and all(
            self._groups[dtype].holds(group) for dtype, group in groups.items()
        )

    def extras(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """What travels with the gradients."""
        return {_name(dtype): (_wide(dtype), tuple(values.shape)) for dtype, values in self._before.items()}

    def begin(self) -> None:
        """Remember the values that all replicas start from."""
        for dtype, group in self._groups.items():
            self._before[dtype].copy_(group.values)

    def contribute(self, step: Step, extra: Callable[[str], torch.Tensor]) -> None:
        """Write how this replica changed the values, once for each of its rows."""
        for dtype, group in self._groups.items():
            mine = extra(_name(dtype))
            if not step.counts:
                mine.zero_()  # not times 0: what was computed without rows may be no number
                continue
            torch.sub(group.values.to(_wide(dtype)), self._before[dtype].to(_wide(dtype)), out=mine)
            mine.mul_(step.share.rows)

    def end(self, step: Step, total: Callable[[str], torch.Tensor]) -> None:
        """Give the variables the old values plus the mean change; what no replica changed stays as it is to the bit."""
        for dtype, group in self._groups.items():
            group.values.copy_(self._before[dtype].to(_wide(dtype)) + total(_name(dtype)) / step.share.global_rows)


def _by_dtype(variables: Sequence[Any]) -> dict[torch.dtype, list[Any]]:
    return group_by_dtype([variable for variable in variables if variable._value.is_floating_point()])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type that changes are added up in."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def _name(dtype: torch.dtype) -> str:
    return f"state {dtype}"
