# SPDX-License-Identifier: Apache-2.0
"""State that each replica keeps for itself while training, such as BatchNormalization's moving statistics.

Inside a training step a variable has this replica's value. Outside it has the mean over replicas, weighted by the
rows they have seen, so that whoever reads (evaluate, save, a callback) sees the same numbers on every replica, and
reading needs no message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stratagem.data._split import share_of
from stratagem.keras_fit._step import Step
from stratagem.keras_fit._torch._flat import FlatVariables, group_by_dtype


class ReplicaState:
    """The non-trainable floating-point weights of a model over one training step.

    Args:
        variables: Built Keras variables; those of other dtypes are left alone.
        num_replicas: Of the job.
    """

    def __init__(self, variables: Sequence[Any], num_replicas: int) -> None:
        self._rows_seen = [0] * num_replicas
        groups = group_by_dtype([variable for variable in variables if variable._value.is_floating_point()])
        self._groups = {dtype: _Group(group) for dtype, group in groups.items()}

    def holds(self, variables: Sequence[Any]) -> bool:
        """Whether this still is about these variables."""
        groups = group_by_dtype([variable for variable in variables if variable._value.is_floating_point()])
        return groups.keys() == self._groups.keys() and all(
            self._groups[dtype].flat.holds(group) for dtype, group in groups.items()
        )

    def extras(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """What travels with the gradients."""
        return {
            _name(dtype): (torch.float32 if dtype.itemsize < 4 else dtype, tuple(group.mine.shape))
            for dtype, group in self._groups.items()
        }

    def begin(self, step: Step) -> None:
        """Give the variables this replica's values."""
        assigned = [group.take_assigned() for group in self._groups.values()]
        if any(assigned):
            self._rows_seen = [0] * len(self._rows_seen)
        for group in self._groups.values():
            group.flat.values.copy_(group.mine)
        for replica in range(len(self._rows_seen)):
            self._rows_seen[replica] += share_of(replica, len(self._rows_seen), step.share.global_rows).rows

    def contribute(self, step: Step, extra: Callable[[str], torch.Tensor]) -> None:
        """Keep this replica's new values, and write its part of the mean."""
        part = self._rows_seen[step.transport.rank] / sum(self._rows_seen)
        for dtype, group in self._groups.items():
            if step.counts:
                group.mine.copy_(group.flat.values)
            else:
                group.keep(step.common_state)
            # As a difference from a value that all replicas share: what no replica changed stays as it is to the bit.
            extra(_name(dtype)).copy_((group.mine - group.shared) * part)

    def end(self, total: Callable[[str], torch.Tensor]) -> None:
        """Give the variables the mean over replicas."""
        for dtype, group in self._groups.items():
            torch.add(group.shared, total(_name(dtype)).to(dtype), out=group.flat.values)
            group.mean.copy_(group.flat.values)

    def replica_values(self) -> list[torch.Tensor]:
        """This replica's own values, flat, by dtype; for tests."""
        return [group.mine.clone() for group in self._groups.values()]


class _Group:
    """The variables of one dtype.

    Attributes:
        flat: The variables; outside steps they hold the mean.
        mine: This replica's values.
        mean: What the variables were given last; anything else in them was assigned from outside.
        shared: What all replicas had when `mine` last was the same everywhere.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.flat = FlatVariables(variables)
        self.mine = self.flat.values.clone()
        self.mean = self.flat.values.clone()
        self.shared = self.flat.values.clone()

    def take_assigned(self) -> bool:
        """If the variables were assigned from outside, start again from those values."""
        if torch.equal(self.flat.values, self.mean):
            return False
        for kept in (self.mine, self.mean, self.shared):
            kept.copy_(self.flat.values)
        return True

    def keep(self, variables: Sequence[Any]) -> None:
        """Take over the new values of these variables alone."""
        wanted = {id(variable) for variable in variables}
        for variable, start in zip(self.flat.variables, self.flat.starts, strict=True):
            if id(variable) in wanted:
                place = slice(start, start + variable._value.numel())
                self.mine[place] = self.flat.values[place]


def _name(dtype: torch.dtype) -> str:
    return f"state {dtype}"
