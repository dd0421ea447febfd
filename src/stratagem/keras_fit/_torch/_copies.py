# SPDX-License-Identifier: Apache-2.0
"""The copies of a variable with one process per replica: a process has one, the variable's tensor."""

from __future__ import annotations

from typing import Any

from stratagem._core.enums import Reduction
from stratagem._core.values import DistributedValues, PerReplica, ReplicaVariable
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.keras_fit import _step


def keras_step() -> bool | None:
    """Every step is one replica's."""
    return None if _step.current() is None else True


def has_rows() -> bool:
    """A replica without rows runs the step for the sake of the others."""
    step = _step.current()
    return step is None or step.counts


def over_replicas(op: Reduction | None, tensor: Any, engine: Engine) -> Any:
    """By the engine."""
    tensor = tensor.detach()
    return (engine.broadcast([[tensor]]) if op is None else engine.all_reduce(op, [[tensor]]))[0][0]


def all_here(variable: ReplicaVariable) -> DistributedValues:
    """The tensor, which goes on changing with the variable; so a copy of it."""
    return PerReplica([variable.own_value.detach().clone()], select.engine().local_replica_ids)


def as_copies(given: DistributedValues) -> Any:
    """This process's part."""
    return given.values[0]


def of_first_replica(variable: ReplicaVariable, engine: Engine) -> Any:
    """From replica 0's process."""
    return engine.broadcast([[variable.own_value.detach()]])[0][0]
