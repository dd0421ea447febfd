# SPDX-License-Identifier: Apache-2.0
"""What of a call's arguments a compiled function hangs on, and what it is given anew each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import core

from stratagem._core import nest
from stratagem._core.values import DistributedValues, PerReplica
from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._stacks import ArrayStack, stack_of
from stratagem.errors import ArgumentTypeError

__all__ = ["AlreadyTraced", "Signature"]

_BY_VALUE = (bool, str, bytes, type(None), type)
_Handler = Callable[["Signature", Any], None]


class AlreadyTraced(Exception):
    """An argument is a value of a trace that is going on, so the function is to become part of that."""


class _Static:
    """An argument that is the same object, or an equal constant."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static):
            return NotImplemented
        if isinstance(self.value, (*_BY_VALUE, int, float, complex)):
            return type(self.value) is type(other.value) and bool(self.value == other.value)
        return self.value is other.value

    def __hash__(self) -> int:
        by_value = isinstance(self.value, (*_BY_VALUE, int, float, complex))
        return hash(self.value) if by_value else id(self.value)


class Signature:
    """The arguments of one call, taken apart.

    Args:
        call: The public name of what was called, for error texts.
        replicas: Whose values per replica may be among the arguments.
        args, kwargs: The arguments.
        static_numbers: Whether Python numbers are constants of the function.

    Attributes:
        key: Equal for calls that can share a compiled function.
        given: The arrays and numbers that differ from call to call.
        has_numbers: Whether Python numbers are among them.
    """

    def __init__(
        self, call: str, replicas: Replicas, args: Sequence[Any], kwargs: Mapping[str, Any], *, static_numbers: bool
    ) -> None:
        self._call, self._replicas, self._static_numbers = call, replicas, static_numbers
        self.given: list[Any] = []
        self.has_numbers = False
        self._parts: list[Any] = []
        leaves, self._tree = jax.tree.flatten((tuple(args), kwargs))
        for leaf in leaves:
            handler = _HANDLERS.get(type(leaf))
            if handler is None:
                handler = _HANDLERS[type(leaf)] = _handler(type(leaf))
            handler(self, leaf)
        self.key = (self._tree, *self._parts)


def rebuilt(key: tuple[Any, ...], given: Sequence[Any], replicas: Replicas) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with that `key`, whose arrays and numbers are `given`."""
    tree, *parts = key
    remaining = iter(given)

    def leaf(part: Any) -> Any:
        if isinstance(part, _Static):
            return part.value
        value = next(remaining)
        if part[0] is not _OWN:
            return value
        return PerReplica.of_stack(ArrayStack(value, replicas), replicas.local_ids)

    return jax.tree.unflatten(tree, [leaf(part) for part in parts])


_OWN, _COMMON, _NUMBER = "own", "common", "number"


def _own(signature: Signature, leaf: DistributedValues) -> None:
    if signature._replicas.size == 1:
        (only,) = leaf.values
        handler = _HANDLERS.get(type(only)) or _handler(type(only))
        return handler(signature, only)
    whole = stack_of(leaf, signature._replicas, signature._call).whole
    if isinstance(whole, core.Tracer):
        raise AlreadyTraced
    signature.given.append(whole)
    signature._parts.append((_OWN, whole.shape, whole.dtype))
    return None


def _array(signature: Signature, leaf: Any) -> None:
    signature.given.append(leaf)
    # Keys of random numbers have no weak types.
    signature._parts.append((_COMMON, leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)))


def _numpy(signature: Signature, leaf: Any) -> None:
    array = np.asarray(leaf)
    if array.dtype.kind in "USOMm":
        return _static(signature, leaf)
    signature.given.append(array)
    signature._parts.append((_COMMON, array.shape, array.dtype))
    return None


def _number(signature: Signature, leaf: Any) -> None:
    if signature._static_numbers:
        return _static(signature, leaf)
    signature.has_numbers = True
    signature.given.append(leaf)
    signature._parts.append((_NUMBER, type(leaf)))
    return None


def _static(signature: Signature, leaf: Any) -> None:
    if nest.is_nested(leaf):
        raise ArgumentTypeError(
            f"{signature._call} was given a {type(leaf).__name__}, a container that jax does not look into",
            fix="give it dicts, lists, tuples or named tuples, or register the class with jax.tree_util",
        )
    signature._parts.append(_Static(leaf))


def _traced(_signature: Signature, _leaf: Any) -> None:
    raise AlreadyTraced


def _handler(kind: type) -> _Handler:
    for base, handler in (
        (DistributedValues, _own),
        (core.Tracer, _traced),
        (jax.Array, _array),
        ((np.ndarray, np.generic), _numpy),
        (bool, _static),
        ((int, float, complex), _number),
        (keras.Variable, _static),
    ):
        if issubclass(kind, base):
            return handler
    # Tensors of other frameworks, as a tf.data set yields them.
    return _numpy if hasattr(kind, "__array__") else _static


_HANDLERS: dict[type, _Handler] = {}
