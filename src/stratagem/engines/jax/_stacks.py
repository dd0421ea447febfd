# SPDX-License-Identifier: Apache-2.0
"""Values per replica as one array with a first dimension for the replicas, divided among their devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from stratagem._core.enums import Reduction
from stratagem._core.values import DistributedValues, Stack
from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._tracing import mean_dtype
from stratagem.errors import ArgumentTypeError, StructureMismatchError

__all__ = ["ArrayStack", "stack_of", "stacked"]

_NUMBERS = {bool: np.dtype(np.bool_), int: np.dtype(np.int32), float: np.dtype(np.float32)}


@dataclass(frozen=True, eq=False)
class ArrayStack(Stack):
    """All replicas' values in one array.

    Attributes:
        whole: Shape (replicas, ...); part i lies on the device of replica i.
        replicas: Whose values they are.
    """

    whole: jax.Array
    replicas: Replicas

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one replica's value."""
        return self.whole.shape[1:]

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.whole.dtype

    @property
    def needs_no_others(self) -> bool:
        """True in one process, and in a trace, whose call has been agreed on."""
        return len(self.replicas.local_ids) == self.replicas.size or isinstance(self.whole, core.Tracer)

    def unstack(self) -> Sequence[Any]:
        """The local replicas' values, each on all local devices, so that user code can calculate with several."""
        if len(self.replicas.local_ids) == self.replicas.size:
            return _taking_apart(self.replicas)(self.whole)
        shards = sorted(self.whole.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        first = shards[0].data.sharding
        return [jax.device_put(shard.data, first)[0] for shard in shards]

    def reduce(self, op: Reduction, dims: tuple[int, ...] | None, others: Sequence[Stack] = ()) -> list[Any]:
        """Every replica gets the results; nothing comes back to the host."""
        wholes = [self.whole, *(other.whole for other in others if isinstance(other, ArrayStack))]
        return _reducing(self.replicas, op, dims)(wholes)

    def gather(self, dim: int) -> Any:
        """Every replica gets the result."""
        return _gathering(self.replicas, dim)(self.whole)


def stacked(given: DistributedValues, replicas: Replicas) -> DistributedValues:
    """`given` as a value that lies on the devices, if it is made of arrays of one kind; else `given` itself."""
    parts = given.values
    first = parts[0]
    arrays = all(isinstance(part, (jax.Array, np.ndarray, np.generic)) for part in parts)
    if replicas.size == 1 or not arrays or not all(_kind(part) == _kind(first) for part in parts):
        return given
    if not (isinstance(first, jax.Array) or first.dtype.kind in "fiubc"):
        return given
    return type(given).of_stack(_stack(parts, replicas), replicas.local_ids)


def stack_of(given: DistributedValues, replicas: Replicas, call: str) -> ArrayStack:
    """The stack of a value that is about to be given to a traced function; made of its parts if it has none.

    Raises:
        ArgumentTypeError: the parts are no numbers.
        StructureMismatchError: they differ in shape or dtype.
    """
    if isinstance(given.stack, ArrayStack):
        return given.stack
    parts = [_NUMBERS[type(part)].type(part) if type(part) in _NUMBERS else part for part in given.values]
    parts = [part if isinstance(part, jax.Array) else np.asarray(part) for part in parts]
    for part in parts:
        if not isinstance(part, jax.Array) and part.dtype.kind not in "fiubcV":
            raise ArgumentTypeError(
                f"{call} was given a value per replica of {type(given.values[0]).__name__}, but it traces the function "
                "once for all replicas, which then differ in numbers only",
                fix="give it numbers or arrays, or one value for all replicas",
            )
    if len({_kind(part) for part in parts}) > 1:
        kinds = ", ".join(f"{part.shape} {part.dtype}" for part in parts)
        raise StructureMismatchError(
            f"{call} was given values that differ in shape or dtype between replicas: {kinds}; it traces the function "
            "once for all replicas",
            fix="give each replica equally many rows, as batch(..., drop_remainder=True) does",
        )
    stack = _stack(parts, replicas)
    given.keep_stack(stack)
    return stack


def _kind(part: Any) -> tuple[Any, ...]:
    return tuple(part.shape), part.dtype


def _stack(parts: Sequence[Any], replicas: Replicas) -> ArrayStack:
    if any(isinstance(part, core.Tracer) for part in parts):
        return ArrayStack(jnp.stack(parts), replicas)
    if len(parts) == replicas.size and all(isinstance(part, np.ndarray) for part in parts):
        return ArrayStack(jax.device_put(np.stack(parts), replicas.sharded), replicas)
    shape = (replicas.size, *parts[0].shape)
    devices = [replicas.devices[i] for i in replicas.local_ids]
    pieces = [jax.device_put(part[None], device) for part, device in zip(parts, devices, strict=True)]
    return ArrayStack(jax.make_array_from_single_device_arrays(shape, replicas.sharded, pieces), replicas)


@functools.lru_cache(maxsize=64)
def _taking_apart(replicas: Replicas) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    return jax.jit(tuple, out_shardings=replicas.replicated)


@functools.lru_cache(maxsize=64)
def _reducing(
    replicas: Replicas, op: Reduction, dims: tuple[int, ...] | None
) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    def reduced(whole: jax.Array) -> jax.Array:
        # Dimensions of one replica's value, in an array that has one more in front.
        inner = tuple(dim % (whole.ndim - 1) + 1 for dim in dims or ())
        if op is Reduction.SUM:
            # An integer sum would widen by itself; TensorFlow's keeps its type.
            return whole.sum(axis=(0, *inner), dtype=whole.dtype)
        return whole.mean(axis=(0, *inner), dtype=mean_dtype(whole.dtype))

    return jax.jit(lambda wholes: [reduced(whole) for whole in wholes], out_shardings=replicas.replicated)


@functools.lru_cache(maxsize=64)
def _gathering(replicas: Replicas, dim: int) -> Callable[[jax.Array], jax.Array]:
    def gathered(whole: jax.Array) -> jax.Array:
        return jnp.concatenate(tuple(whole), axis=dim)

    return jax.jit(gathered, out_shardings=replicas.replicated)
