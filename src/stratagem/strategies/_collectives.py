# SPDX-License-Identifier: Apache-2.0
"""Reducing and gathering nested values: the checks, and the arithmetic around the engine's collectives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from stratagem._core import nest, values
from stratagem._core.enums import ReduceOp, Reduction
from stratagem._core.options import CommunicationOptions
from stratagem.engines.base import Tensor
from stratagem.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "Collectives",
    "check_options",
    "check_type_of_options",
    "gather",
    "gather_in_replica",
    "parse_op",
    "reduce",
    "reduce_in_replica",
]

Axis = int | Sequence[int] | None

_logger = logging.getLogger(__name__)


class Collectives(Protocol):
    """The part of an engine that reducing and gathering needs."""

    @property
    def num_replicas(self) -> int: ...

    @property
    def local_replica_ids(self) -> tuple[int, ...]: ...

    def to_tensor(self, value: object) -> Tensor: ...

    def all_reduce(self, op: Reduction, values: Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]: ...

    def all_gather(self, values: Sequence[Sequence[Tensor]], axis: int) -> Sequence[Sequence[Tensor]]: ...


def parse_op(given: ReduceOp | str) -> ReduceOp:
    """`given` as a `ReduceOp`; a string in any case will do.

    Raises:
        ArgumentError: it is neither SUM nor MEAN.
    """
    try:
        return ReduceOp(given)
    except ValueError:
        raise ArgumentError(f"{given!r} is neither SUM nor MEAN", fix='reduce with "SUM" or "MEAN"') from None


def check_type_of_options(options: object) -> None:
    """Check the options of collectives.

    Raises:
        ArgumentTypeError: they are no `CommunicationOptions`.
    """
    if options is not None and not isinstance(options, CommunicationOptions):
        raise ArgumentTypeError(
            f"options={options!r} is not a CommunicationOptions", fix="options=CommunicationOptions(...)"
        )


def check_options(options: object) -> None:
    """Check the `options` of one collective, and say which of them has no effect.

    Raises:
        ArgumentTypeError: they are no `CommunicationOptions`.
    """
    check_type_of_options(options)
    if isinstance(options, CommunicationOptions) and options.timeout_seconds is not None:
        _logger.warning(
            "CommunicationOptions.timeout_seconds=%g has no effect on a single collective; "
            "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS sets the limit of all",
            options.timeout_seconds,
        )


def reduce(engine: Collectives, op: ReduceOp, value: Any, axis: Axis) -> tuple[Any, ...]:
    """A nested value of the replicas, reduced over replicas and `axis`: one equal structure per local replica.

    A leaf that is no distributed value is the same on every replica, so its MEAN is itself; its SUM over replicas
    alone is refused, for it would depend on the number of replicas.
    """
    dims = _dims(axis)
    leaves = [values.copies_of(leaf) for leaf in nest.flatten(value)]
    num_local = len(engine.local_replica_ids)
    moving = [n for n, leaf in enumerate(leaves) if _varies(engine, op, leaf, dims)]
    if (stacks := _stacks([leaves[n] for n in moving], num_local)) is not None:
        reduced = _reduce_stacks(Reduction(op.value), stacks, dims)
        return (_filled(value, leaves, moving, reduced),) * num_local
    columns = [[values.local(leaves[n], local, num_local) for n in moving] for local in range(num_local)]
    tensors = [_reducible(engine, "strategy.reduce", column) for column in columns]
    if dims is None:
        reduced = engine.all_reduce(Reduction(op.value), tensors) if moving else [()] * num_local
    else:
        reduced = _reduce_dims(engine, op, tensors, dims)
    return tuple(_filled(value, leaves, moving, results) for results in reduced)


def reduce_in_replica(engine: Collectives, op: ReduceOp, structures: Sequence[Any]) -> list[Any]:
    """Per local replica a structure like the one it gave, reduced; a leaf that is None stays None."""
    flat = [nest.flatten(structure) for structure in structures]
    call = "ReplicaContext.all_reduce"
    given = [_reducible(engine, call, [leaf for leaf in leaves if leaf is not None]) for leaves in flat]
    reduced = engine.all_reduce(Reduction(op.value), given) if any(given) else given
    return [_with_nones(*each) for each in zip(structures, flat, reduced, strict=True)]


def gather(engine: Collectives, value: Any, axis: int) -> tuple[Any, ...]:
    """A nested value of the replicas, concatenated along `axis`: one equal structure per local replica."""
    leaves = nest.flatten(value)
    num_local = len(engine.local_replica_ids)
    moving = [n for n, leaf in enumerate(leaves) if isinstance(leaf, values.DistributedValues)]
    if (stacks := _stacks([leaves[n] for n in moving], num_local)) is not None:
        _check_axis("strategy.gather", axis, stacks)
        return (
            _filled(value, leaves, moving, [stack.gather(axis % len(stack.shape)) for stack in stacks]),
        ) * num_local
    columns = [[values.local(leaves[n], local, num_local) for n in moving] for local in range(num_local)]
    tensors = [_gatherable(engine, "strategy.gather", column, axis) for column in columns]
    gathered = engine.all_gather(tensors, axis) if moving else [()] * num_local
    return tuple(_filled(value, leaves, moving, results) for results in gathered)


def gather_in_replica(engine: Collectives, structures: Sequence[Any], axis: int) -> list[Any]:
    """Per local replica a structure like the one it gave, of concatenations along `axis`."""
    flat = [nest.flatten(structure) for structure in structures]
    given = [_gatherable(engine, "ReplicaContext.all_gather", leaves, axis) for leaves in flat]
    gathered = engine.all_gather(given, axis) if any(given) else given
    return [nest.pack(structure, leaves) for structure, leaves in zip(structures, gathered, strict=True)]


def _stacks(leaves: Sequence[Any], num_local: int) -> list[values.Stack] | None:
    """The stacks of `leaves`, if each has one: then nothing needs to be taken apart."""
    stacks: list[values.Stack] = []
    for leaf in leaves:
        if not isinstance(leaf, values.DistributedValues) or leaf.stack is None or not leaf.stack.needs_no_others:
            return None
        values.check_count(leaf, num_local)
        stacks.append(leaf.stack)
    return stacks or None


def _reduce_stacks(op: Reduction, stacks: Sequence[values.Stack], dims: tuple[int, ...] | None) -> list[Tensor]:
    _refuse_bools("strategy.reduce", stacks)
    for stack in stacks:
        _check_dims("strategy.reduce", stack, dims or ())
    first, *others = stacks
    return first.reduce(op, dims, others)


def _reduce_dims(
    engine: Collectives, op: ReduceOp, tensors: Sequence[Sequence[Tensor]], dims: tuple[int, ...]
) -> list[list[Tensor]]:
    for column in tensors:
        for tensor in column:
            _check_dims("strategy.reduce", tensor, dims)
    if op is ReduceOp.SUM:
        # An integer sum would widen by itself; TensorFlow's keeps its type.
        totals = [[tensor.sum(axis=dims, dtype=tensor.dtype) for tensor in column] for column in tensors]
        return [list(column) for column in engine.all_reduce(Reduction.SUM, totals)]
    # Replicas may hold different numbers of elements, so a mean of their means would be wrong. The number of
    # replicas cancels out of (mean of totals) / (mean of counts), and integer totals come back as float64.
    both = [
        [tensor.sum(axis=dims) for tensor in column] + [engine.to_tensor(_count(tensor, dims)) for tensor in column]
        for column in tensors
    ]
    half = len(tensors[0])
    reduced = engine.all_reduce(Reduction.MEAN, both)
    return [[_quotient(engine, *pair) for pair in zip(column[:half], column[half:], strict=True)] for column in reduced]


def _quotient(engine: Collectives, total: Tensor, count: Tensor) -> Tensor:
    if str(total.dtype) == "float64":
        # As jax writes its 64 bits, which it can hold but not calculate with unless it is told to; numpy can.
        return engine.to_tensor(total.__array__() / float(count))
    return total / float(count)


def _varies(engine: Collectives, op: ReduceOp, leaf: Any, dims: tuple[int, ...] | None) -> bool:
    # Whether a leaf needs the engine: not where it is the same on all replicas and only its mean is asked for.
    if isinstance(leaf, values.DistributedValues) or dims is not None or engine.num_replicas == 1:
        return True
    if op is ReduceOp.MEAN and leaf is not None:
        return False
    raise ArgumentError(
        f"strategy.reduce({op.value!r}, axis=None) was given {_short(leaf)}, which is not a value per replica",
        fix="give it what strategy.run() returned, or multiply by strategy.num_replicas_in_sync",
    )


def _reducible(engine: Collectives, call: str, leaves: Sequence[Any]) -> list[Tensor]:
    tensors = [_tensor(engine, call, leaf) for leaf in leaves]
    _refuse_bools(call, tensors)
    return tensors


def _refuse_bools(call: str, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if str(tensor.dtype).endswith("bool"):
            raise ArgumentTypeError(
                f"{call} was given a bool of shape {tuple(tensor.shape)}", fix="cast it to an integer or a float first"
            )


def _gatherable(engine: Collectives, call: str, leaves: Sequence[Any], axis: int) -> list[Tensor]:
    tensors = [_tensor(engine, call, leaf) for leaf in leaves]
    _check_axis(call, axis, tensors)
    return tensors


def _check_axis(call: str, axis: int, tensors: Sequence[Tensor]) -> None:
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise ArgumentTypeError(f"{call} was given axis={axis!r}", fix="axis=0, or another whole number")
    for tensor in tensors:
        _check_dims(call, tensor, (axis,))


def _tensor(engine: Collectives, call: str, leaf: Any) -> Tensor:
    text = isinstance(leaf, str | bytes) or getattr(getattr(leaf, "dtype", None), "kind", "") in ("U", "S", "O")
    if text or leaf is None or isinstance(leaf, values.DistributedValues):
        raise ArgumentTypeError(f"{call} was given {_short(leaf)}", fix="give it numbers, arrays or tensors")
    return engine.to_tensor(leaf)


def _check_dims(call: str, tensor: Tensor, dims: Sequence[int]) -> None:
    shape = tuple(tensor.shape)
    for dim in dims:
        if -len(shape) <= dim < len(shape):
            continue
        if shape:
            fix = f"use an axis from {-len(shape)} to {len(shape) - 1}"
        else:
            fix = "use axis=None to reduce" if "reduce" in call else "give it one dimension, as in reshape(value, (1,))"
        raise ArgumentError(f"{call} was given axis={dim} for a value of shape {shape}", fix=fix)


def _dims(axis: Axis) -> tuple[int, ...] | None:
    if axis is None:
        return None
    dims = tuple(axis) if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
    if not dims or not all(isinstance(dim, int) and not isinstance(dim, bool) for dim in dims):
        raise ArgumentTypeError(f"strategy.reduce was given axis={axis!r}", fix="axis=None, axis=0 or axis=(0, 1)")
    return tuple(dim for dim in dims if isinstance(dim, int))


def _count(tensor: Tensor, dims: Sequence[int]) -> int:
    count = 1
    for dim in dims:
        count *= int(tensor.shape[dim])
    return count


def _filled(value: Any, leaves: Sequence[Any], moving: Sequence[int], results: Sequence[Tensor]) -> Any:
    filled = list(leaves)
    for n, result in zip(moving, results, strict=True):
        filled[n] = result
    return nest.pack(value, filled)


def _with_nones(structure: Any, leaves: Sequence[Any], results: Sequence[Tensor]) -> Any:
    remaining = iter(results)
    return nest.pack(structure, [None if leaf is None else next(remaining) for leaf in leaves])


def _short(leaf: Any) -> str:
    if leaf is None:
        return "None"
    if isinstance(leaf, values.DistributedValues):
        return f"a {type(leaf).__name__} inside a replica function"
    text = repr(leaf)
    return text if len(text) <= 60 else f"a {type(leaf).__name__}"
