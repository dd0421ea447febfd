# SPDX-License-Identifier: Apache-2.0
"""The copies of a variable with many replicas in a process.

They are the buffers of one array that jax takes for the same on all devices: code of a replica reads and writes its
device's, and reading the array on the host reads the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
from jax import core
from jax.sharding import PartitionSpec

from stratagem._core.enums import Reduction
from stratagem._core.values import DistributedValues, PerReplica, ReplicaVariable
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.engines.jax import JaxEngine, _tracing
from stratagem.engines.jax._mesh import AXIS, Replicas
from stratagem.engines.jax._stacks import ArrayStack, stack_of
from stratagem.engines.jax._tracing import in_replica_trace
from stratagem.keras_fit._jax import _trace


def keras_step() -> bool | None:
    """A step runs on each replica's rows, or once on the whole batch."""
    if _trace.replica_step() is not None:
        return True
    return None if _trace.global_step() is None else False


def has_rows() -> bool:
    """Rows that fill a batch up count nowhere."""
    return True


def over_replicas(op: Reduction | None, tensor: Any, engine: Engine) -> Any:
    """A replica's code is traced, in `run` and in `fit`."""
    del engine
    return (_tracing.broadcast([tensor], 0) if op is None else _tracing.all_reduce(op, [tensor]))[0]


def all_here(variable: ReplicaVariable) -> DistributedValues:
    """The buffers as one array with a dimension for the replicas."""
    value, replicas = variable.own_value, _replicas()
    if in_replica_trace():
        return PerReplica([value], select.engine().local_replica_ids)
    if not isinstance(value, core.Tracer) and value.sharding != replicas.replicated:
        value = jax.device_put(value, replicas.replicated)
    return PerReplica.of_stack(ArrayStack(_stacking(replicas)(value), replicas), replicas.local_ids)


def as_copies(given: DistributedValues) -> Any:
    """The array whose buffers are the values."""
    if in_replica_trace():
        return given.values[0]
    replicas = _replicas()
    return _unstacking(replicas)(stack_of(given, replicas, "assign").whole)


def of_first_replica(variable: ReplicaVariable, engine: Engine) -> Any:
    """Its buffer, in the place of all others."""
    if in_replica_trace():
        return engine.broadcast([[variable.own_value]])[0][0]
    replicas = _replicas()
    copies = all_here(variable).stack
    return _first(replicas)(cast(ArrayStack, copies).whole)


def _replicas() -> Replicas:
    return cast(JaxEngine, select.engine()).replicas


@functools.lru_cache(maxsize=64)
def _stacking(replicas: Replicas) -> Callable[[jax.Array], jax.Array]:
    one, all_ = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(lambda own: own[None], mesh=replicas.mesh, in_specs=one, out_specs=all_, check_vma=False)
    )


@functools.lru_cache(maxsize=64)
def _unstacking(replicas: Replicas) -> Callable[[jax.Array], jax.Array]:
    one, all_ = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(lambda whole: whole[0], mesh=replicas.mesh, in_specs=all_, out_specs=one, check_vma=False)
    )


@functools.lru_cache(maxsize=64)
def _first(replicas: Replicas) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda whole: whole[0], out_shardings=replicas.replicated)
