# SPDX-License-Identifier: Apache-2.0
"""Keras variables that lie side by side in one tensor, so that all are read, set or sent at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class FlatVariables:
    """Moves the values of `variables`, all of one dtype, into one flat tensor; the variables become views of it.

    Args:
        variables: Built Keras variables.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        first = variables[0]._value
        self.values = torch.empty(
            sum(variable._value.numel() for variable in variables), dtype=first.dtype, device=first.device
        )
        self.starts: list[int] = []
        start = 0
        for variable in self.variables:
            value = variable._value
            view = self.values[start : start + value.numel()].view(value.shape)
            view.copy_(value.detach())
            value.data = view
            self.starts.append(start)
            start += value.numel()

    def holds(self, variables: Sequence[Any]) -> bool:
        """Whether these are exactly `variables`, and still views of the flat tensor."""
        if len(variables) != len(self.variables):
            return False
        base, size = self.values.data_ptr(), self.values.element_size()
        return all(
            mine is theirs and mine._value.data_ptr() == base + start * size
            for mine, theirs, start in zip(self.variables, variables, self.starts, strict=True)
        )


def group_by_dtype(variables: Sequence[Any]) -> dict[torch.dtype, list[Any]]:
    """The variables of each dtype, in order."""
    groups: dict[torch.dtype, list[Any]] = {}
    for variable in variables:
        groups.setdefault(variable._value.dtype, []).append(variable)
    return groups
