# SPDX-License-Identifier: Apache-2.0
"""Inside a function that is traced once for all replicas: which replica this is, and how it reaches the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from stratagem._core.enums import Reduction
from stratagem.engines.jax import _weight_gradients
from stratagem.engines.jax._mesh import AXIS, Replicas
from stratagem.errors import ArgumentTypeError

__all__ = [
    "all_gather",
    "all_reduce",
    "broadcast",
    "in_replica_trace",
    "mean_dtype",
    "replica_id",
    "replicas",
    "rows_of_replica",
    "tracing_replica",
]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.replicas: Replicas | None = None
        self.rows: int | None = None


_THREAD = _Thread()


def replicas() -> Replicas | None:
    """The replicas for which a function is being traced in this thread, or None."""
    return _THREAD.replicas


def in_replica_trace() -> bool:
    """Whether a replica's function is being traced, so that `replica_id()` and collectives over `AXIS` may be used."""
    return _THREAD.replicas is not None


def rows_of_replica() -> int | None:
    """How many rows the replica has in the batch that its function was given, or None if it was given none."""
    return _THREAD.rows


@contextmanager
def tracing_replica(of: Replicas, rows: int | None = None) -> Iterator[None]:
    """Code inside is that of one of the replicas `of`, which has `rows` rows of the global batch."""
    previous = _THREAD.replicas, _THREAD.rows
    _THREAD.replicas, _THREAD.rows = of, rows
    try:
        with _weight_gradients.computed_in_order(of):
            yield
    finally:
        _THREAD.replicas, _THREAD.rows = previous


def replica_id() -> jax.Array:
    """This replica's number: a traced int32."""
    return lax.axis_index(AXIS)


def all_reduce(op: Reduction, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Each tensor reduced over all replicas; the gradient of SUM and MEAN is the SUM or MEAN of the gradients."""
    return tuple(_reduced(op, jnp.asarray(tensor)) for tensor in tensors)


def all_gather(tensors: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """Each tensor concatenated over replicas; the gradient is this replica's part of the SUM of the gradients."""
    return tuple(lax.all_gather(tensor, AXIS, axis=axis % tensor.ndim, tiled=True) for tensor in tensors)


def broadcast(tensors: Sequence[Any], source: int) -> tuple[Any, ...]:
    """Replica `source`'s tensors."""
    here = replica_id() == source
    sums = [lax.psum(jnp.where(here, tensor, jnp.zeros_like(tensor)), AXIS) for tensor in tensors]
    return tuple(total.astype(tensor.dtype) for total, tensor in zip(sums, tensors, strict=True))


def mean_dtype(dtype: Any) -> Any:
    """The dtype of a mean of values of type `dtype`: integers give the widest float that jax is set to."""
    return jnp.result_type(float) if jnp.issubdtype(dtype, jnp.integer) else dtype


def _reduced(op: Reduction, tensor: jax.Array) -> jax.Array:
    if tensor.dtype == jnp.bool_:
        raise ArgumentTypeError(f"bool can't be reduced with {op.name}", fix="cast it to an integer first")
    if op is Reduction.MIN:
        return lax.pmin(tensor, AXIS)
    if op is Reduction.MAX:
        return lax.pmax(tensor, AXIS)
    if op is Reduction.SUM:
        return lax.psum(tensor, AXIS)
    return lax.pmean(tensor.astype(mean_dtype(tensor.dtype)), AXIS)
