# SPDX-License-Identifier: Apache-2.0
"""Collectives as XLA programs over the replicas' mesh: values stay on the devices, and the result is on all of them.

Whoever calls has checked that the replicas' values fit together. They come as one column per local replica, and lie on
any device; a program needs each on its replica's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from stratagem._core.enums import Reduction
from stratagem.engines.jax._in_flight import InFlight
from stratagem.engines.jax._mesh import AXIS, Replicas

__all__ = ["Collectives"]

# XLA compiles a program in a time that grows faster than its number of values.
_MOST_AT_ONCE = 64
_HALF = (jnp.float16, jnp.bfloat16)
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}

Columns = Sequence[Sequence[jax.Array]]


class Collectives:
    """The collectives of one mesh; keeps its compiled programs.

    Args:
        replicas: The mesh.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._local_devices = [replicas.devices[replica] for replica in replicas.local_ids]
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._in_flight = InFlight(replicas.on_cpu)

    def all_reduce(self, op: Reduction, columns: Columns) -> list[jax.Array]:
        """Each place of the columns, reduced over the replicas."""
        # Types of 64 bits are as good as any other here, whatever jax_enable_x64 says.
        with jax.enable_x64(True):
            if self._replicas.size == 1:
                return [_alone(op, value) for value in columns[0]]
            program = self._program(op, lambda: self._mapped(functools.partial(_reduce, op, self._replicas.size)))
            return self._in_chunks(program, self._placed(columns))

    def all_gather(self, columns: Columns, axis: int, lengths: Sequence[Sequence[int]]) -> list[jax.Array]:
        """Each place of the columns, concatenated along `axis`; `lengths[i]` has the replicas' sizes of place i."""
        if self._replicas.size == 1:
            return list(columns[0])
        with jax.enable_x64(True):
            places = zip(*self._placed(columns), strict=True)
            return [self._gathered(parts, axis, tuple(sizes)) for parts, sizes in zip(places, lengths, strict=True)]

    def broadcast(self, columns: Columns, source: int) -> list[jax.Array]:
        """Replica `source`'s column."""
        replicas = self._replicas
        if replicas.size == 1:
            return list(columns[0])
        with jax.enable_x64(True):
            if len(replicas.local_ids) == replicas.size:
                return jax.device_put(list(columns[source]), replicas.replicated)
            program = self._program(("from", source), lambda: self._mapped(functools.partial(_from, source)))
            return self._in_chunks(program, self._placed(columns))

    def _program(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        if key not in self._programs:
            self._programs[key] = make()
        return self._programs[key]

    def _mapped(self, function: Callable[..., Any], out: PartitionSpec = PartitionSpec()) -> Callable[..., Any]:  # noqa: B008
        return jax.jit(
            jax.shard_map(
                function, mesh=self._replicas.mesh, in_specs=PartitionSpec(AXIS), out_specs=out, check_vma=False
            )
        )

    def _in_chunks(self, program: Callable[..., Any], columns: Columns) -> list[jax.Array]:
        """Run `program` on the columns, a part of them at a time."""
        results: list[jax.Array] = []
        for start in range(0, len(columns[0]), _MOST_AT_ONCE):
            results += self._run(program, [column[start : start + _MOST_AT_ONCE] for column in columns])
        return results

    def _run(self, program: Callable[..., Any], columns: Columns) -> list[jax.Array]:
        """Run `program` on arrays, and on scalars of one dtype as one array."""
        scalars: dict[Any, list[int]] = {}
        arrays = [n for n, value in enumerate(columns[0]) if value.ndim]
        for n, value in enumerate(columns[0]):
            if not value.ndim:
                scalars.setdefault(value.dtype, []).append(n)
        stacks = [_stack([[column[n] for n in places] for places in scalars.values()]) for column in columns]
        whole, single = program(
            [self._joined([column[n] for column in columns], 0) for n in arrays],
            [self._joined(parts, 0) for parts in zip(*stacks, strict=True)],
        )
        self._in_flight.note([*whole, *single])
        order = [*arrays, *(n for places in scalars.values() for n in places)]
        found = dict(zip(order, [*whole, *single], strict=True))
        return [found[n] for n in range(len(order))]

    def _gathered(self, parts: Sequence[jax.Array], axis: int, sizes: tuple[int, ...]) -> jax.Array:
        axis %= parts[0].ndim
        longest = max(sizes)
        if len(set(sizes)) == 1:
            spread = self._program("spread", lambda: jax.jit(lambda x: x, out_shardings=self._replicas.replicated))
            return self._noted(spread(self._joined(parts, axis)))
        padded = [_pad(part, axis, longest) for part in parts]
        program = self._program(
            ("gather", axis, sizes), lambda: self._mapped(functools.partial(_gather, axis=axis, sizes=sizes))
        )
        return self._noted(program(self._joined([part[None] for part in padded], 0)))

    def _noted(self, result: jax.Array) -> jax.Array:
        self._in_flight.note(result)
        return result

    def _joined(self, parts: Sequence[jax.Array], axis: int) -> jax.Array:
        """The replicas' parts as one array that is divided among them along `axis`; nothing is copied."""
        shape = list(parts[0].shape)
        shape[axis] *= self._replicas.size
        sharding = self._replicas.sharded
        if axis:
            sharding = NamedSharding(self._replicas.mesh, PartitionSpec(*[None] * axis, AXIS))
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(parts))

    def _placed(self, columns: Columns) -> list[list[jax.Array]]:
        """Each local replica's values on its device."""
        placed: list[list[jax.Array]] = []
        for local, (column, device) in enumerate(zip(columns, self._local_devices, strict=True)):
            here = [self._local_part(value, local) for value in column]
            away = [n for n, value in enumerate(here) if value.devices() != {device}]
            if away:
                here = _replaced(here, away, jax.device_put([here[n] for n in away], device))
            placed.append(here)
        return placed

    def _local_part(self, value: jax.Array, local: int) -> jax.Array:
        if value.sharding == self._replicas.replicated:
            return value.addressable_data(local)
        # Whole on the devices of several processes, as it is no value per replica.
        return value if value.is_fully_addressable else value.addressable_data(0)


def _reduce(
    op: Reduction, size: int, arrays: Sequence[jax.Array], stacks: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    return [_reduced(op, size, x) for x in arrays], [scalar for x in stacks for scalar in _reduced(op, size, x)]


def _reduced(op: Reduction, size: int, x: jax.Array) -> jax.Array:
    kept = x.dtype
    if kept in _HALF:
        x = x.astype(jnp.float32)
    if op is Reduction.SUM:
        return lax.psum(x, AXIS).astype(kept)
    if op is Reduction.MEAN:
        if jnp.issubdtype(kept, jnp.integer):
            return lax.psum(x.astype(jnp.float64), AXIS) / size
        return (lax.psum(x, AXIS) / size).astype(kept)
    picked = (lax.pmin if op is Reduction.MIN else lax.pmax)(x, AXIS)
    if jnp.issubdtype(kept, jnp.inexact):
        # XLA's own comparison passes over a NaN.
        unknown = lax.psum(jnp.isnan(x).astype(jnp.int32), AXIS)
        picked = jnp.where(unknown > 0, jnp.nan, picked)
    return picked.astype(kept)


def _alone(op: Reduction, value: jax.Array) -> jax.Array:
    """What a reduction makes of the value of the only replica."""
    if op is Reduction.MEAN and jnp.issubdtype(value.dtype, jnp.integer):
        return value.astype(jnp.float64)
    return value


def _from(
    source: int, arrays: Sequence[jax.Array], stacks: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    return [_sent(source, x) for x in arrays], [scalar for x in stacks for scalar in _sent(source, x)]


def _sent(source: int, x: jax.Array) -> jax.Array:
    """Replica `source`'s `x`: its bits, added to zeros, as a sum of floats would lose a NaN's and a zero's sign."""
    kept = x.dtype
    if jnp.issubdtype(kept, jnp.complexfloating):
        return lax.complex(_sent(source, x.real), _sent(source, x.imag))
    bits = x.astype(jnp.uint8) if kept == jnp.bool_ else lax.bitcast_convert_type(x, _UNSIGNED[kept.itemsize])
    mine = jnp.where(lax.axis_index(AXIS) == source, bits, jnp.zeros_like(bits))
    total = lax.psum(mine, AXIS)
    return total.astype(kept) if kept == jnp.bool_ else lax.bitcast_convert_type(total, kept)


def _gather(x: jax.Array, *, axis: int, sizes: tuple[int, ...]) -> jax.Array:
    rows = lax.all_gather(x[0], AXIS)
    parts = [lax.slice_in_dim(rows[replica], 0, size, axis=axis) for replica, size in enumerate(sizes)]
    return jnp.concatenate(parts, axis)


@jax.jit
def _stack(groups: list[list[jax.Array]]) -> list[jax.Array]:
    return [jnp.stack(scalars) for scalars in groups]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _pad(x: jax.Array, axis: int, size: int) -> jax.Array:
    return jnp.pad(x, [(0, size - x.shape[axis] if dim == axis else 0) for dim in range(x.ndim)])


def _replaced(values: Sequence[jax.Array], places: Sequence[int], by: Sequence[jax.Array]) -> list[jax.Array]:
    replaced = list(values)
    for place, value in zip(places, by, strict=True):
        replaced[place] = value
    return replaced
