# SPDX-License-Identifier: Apache-2.0
"""What differs between engines in how the replicas' copies of a variable are kept."""

from __future__ import annotations

from typing import Any, Protocol

from stratagem._core.enums import Reduction
from stratagem._core.values import DistributedValues, ReplicaVariable
from stratagem.engines.base import Engine

__all__ = ["Copies"]


class Copies(Protocol):
    """The copies of the replicas that one process holds; a module of each engine has these functions."""

    def keras_step(self) -> bool | None:
        """Within a step of `fit` and its like: whether it is one replica's step, or one of the whole batch."""

    def has_rows(self) -> bool:
        """Within such a step: whether what happens in it counts."""
        ...

    def over_replicas(self, op: Reduction | None, tensor: Any, engine: Engine) -> Any:
        """In a replica: its tensor reduced over all replicas, or without `op` that of the first."""
        ...

    def all_here(self, variable: ReplicaVariable) -> DistributedValues:
        """The copies of this process's replicas; in a trace that of the replica."""
        ...

    def as_copies(self, given: DistributedValues) -> Any:
        """A value per replica, to be calculated with and written as a variable's copies are."""
        ...

    def of_first_replica(self, variable: ReplicaVariable, engine: Engine) -> Any:
        """Replica 0's copy, in every process."""
        ...
