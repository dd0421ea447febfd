# SPDX-License-Identifier: Apache-2.0
"""Keras variables as inputs and outputs of compiled functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._core.values import ReplicaVariable
from stratagem.engines.jax._mesh import Replicas

__all__ = ["Access", "Variables", "assign_own", "own_value", "use_access"]


def own_value(variable: Any) -> jax.Array:
    """A variable's array as it lies on the devices, on each as its replica last wrote it."""
    return variable.own_value if isinstance(variable, ReplicaVariable) else variable.value


def assign_own(variable: Any, value: Any) -> None:
    """Write a variable's array on all devices, on each as its replica has it."""
    if isinstance(variable, ReplicaVariable):
        variable.assign_own(value)
    else:
        variable.assign(value)


@dataclass(frozen=True)
class Access:
    """How a variable's array is read and written.

    Attributes:
        read: Of a variable, its array.
        write: Put an array of the right shape and dtype in the place of a variable's array.
    """

    write: Callable[[Any, jax.Array], object]
    read: Callable[[Any], jax.Array] = own_value


_access = Access(write=lambda variable, value: variable.assign(value))


def use_access(access: Access) -> None:
    """Read and write variables in this way from now on; `keras_fit` knows a faster one than Keras's public names."""
    global _access
    _access = access


class Variables:
    """The variables that a function touches.

    Args:
        read: Those it reads.
        written: Those it writes.
        replicas: On whose devices they are to lie, whole; None leaves them where they are.
    """

    def __init__(self, read: Sequence[Any], written: Sequence[Any], replicas: Replicas | None) -> None:
        self.written = list(written)
        changing = {id(variable) for variable in written}
        self.kept = [variable for variable in read if id(variable) not in changing]
        self._place = None if replicas is None else replicas.replicated
        self._trainable = self._trainable_now()

    def as_trainable_as_before(self) -> bool:
        """Whether each of them is trainable now if it was when this was made: `layer.trainable` may be set anew."""
        return self._trainable == self._trainable_now()

    def take(self) -> tuple[list[jax.Array], list[jax.Array]]:
        """The arrays of the written variables, which nobody else holds, and those of the others."""
        giving = self._placed(self.written)
        for n, array in enumerate(giving):
            # Whoever else holds the array, as `kept = variable.value` does, must still have it after it was donated.
            if sys.getrefcount(array) > _ALONE:
                giving[n] = jnp.copy(array)
        return giving, self._placed(self.kept)

    def put(self, arrays: Sequence[jax.Array]) -> None:
        """New arrays for the written variables."""
        write = _access.write
        for variable, array in zip(self.written, arrays, strict=True):
            write(variable, array)

    def _trainable_now(self) -> list[bool]:
        return [variable.trainable for group in (self.written, self.kept) for variable in group]

    def _placed(self, variables: Sequence[Any]) -> list[jax.Array]:
        arrays = list(map(_access.read, variables))
        place = self._place
        for n, array in enumerate(arrays):
            right = array
            if array.weak_type:
                # A step's results never are, so the second call would be traced anew.
                right = jnp.asarray(array, array.dtype)
            if place is not None and right.sharding is not place and right.sharding != place:
                # Not sharing memory: whoever else holds the array must still have it after this one was donated.
                right = jax.device_put(jnp.copy(right), place)
            if right is not array:
                # Once, not at each call.
                arrays[n] = right
                _access.write(variables[n], right)
        return arrays


def _references_to_one_held_once() -> int:
    class Holder:
        value = object()

    (count,) = [sys.getrefcount(array) for _, array in enumerate([Holder.value])]
    return count


_ALONE = _references_to_one_held_once()
