# SPDX-License-Identifier: Apache-2.0
"""An engine without a framework: numpy arrays, and every replica a thread of this process. For tests and doctests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from stratagem._core.enums import Reduction
from stratagem.engines.base import Capabilities, Engine
from stratagem.errors import ArgumentTypeError, StructureMismatchError

__all__ = ["FakeEngine", "FakeVariable"]

T = TypeVar("T")
Columns = Sequence[Sequence[Any]]


class FakeVariable:
    """A variable with the two members that the fake engine needs of a Keras variable."""

    def __init__(self, value: Any) -> None:
        self.value = _array(value)

    def assign(self, value: Any) -> None:
        """Replace the value."""
        self.value = _array(value).astype(self.value.dtype)


class FakeEngine(Engine):
    """All replicas of a job in one process, each a thread while `run_on_replicas` lasts.

    Args:
        num_devices: How many devices this host offers.
        device_type: Their type.

    >>> engine = FakeEngine(2)
    >>> engine.connect(engine.local_devices())
    >>> engine.all_reduce(Reduction.SUM, [[np.float32(1)], [np.float32(2)]])[0]
    (array(3., dtype=float32),)
    """

    name = "fake"
    capabilities = Capabilities(many_replicas_per_process=True, traced_functions=False)

    def __init__(self, num_devices: int = 4, device_type: str = "CPU") -> None:
        self._present = tuple(f"{device_type}:{index}" for index in range(num_devices))
        self._devices: tuple[str, ...] = ()

    def local_devices(self) -> tuple[str, ...]:
        return self._present

    def all_devices(self) -> tuple[str, ...]:
        return self._present

    def connect(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)

    def disconnect(self) -> None:
        self._devices = ()

    @property
    def num_replicas(self) -> int:
        return max(1, len(self._devices))

    @property
    def local_replica_ids(self) -> tuple[int, ...]:
        return tuple(range(self.num_replicas))

    @property
    def rank(self) -> int:
        return 0

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, np.ndarray | np.generic | FakeVariable)

    def to_tensor(self, value: object) -> np.ndarray:
        return _array(value.value if isinstance(value, FakeVariable) else value)

    def run_on_replicas(
        self, fn: Callable[..., T], args: Sequence[tuple[Any, ...]], kwargs: Sequence[dict[str, Any]]
    ) -> tuple[T, ...]:
        if len(args) == 1:
            return (fn(*args[0], **kwargs[0]),)
        with ThreadPoolExecutor(len(args), thread_name_prefix="replica") as pool:
            futures = [pool.submit(fn, *a, **k) for a, k in zip(args, kwargs, strict=True)]
        return tuple(future.result() for future in futures)

    def all_reduce(self, op: Reduction, values: Columns) -> tuple[tuple[Any, ...], ...]:
        rows = self._rows(values)
        for row in rows:
            if any(array.dtype == np.bool_ for array in row):
                raise ArgumentTypeError(f"bool can't be reduced with {op.name}", fix="cast it to an integer first")
            if len({(array.shape, array.dtype) for array in row}) > 1:
                raise StructureMismatchError(f"all_reduce of values that differ between replicas: {_kinds(row)}")
        reduced = tuple(_reduced(op, row) for row in rows)
        return (reduced,) * self.num_replicas

    def all_gather(self, values: Columns, axis: int) -> tuple[tuple[Any, ...], ...]:
        gathered = tuple(_concatenated(row, axis) for row in self._rows(values))
        return (gathered,) * self.num_replicas

    def all_gather_objects(self, values: Sequence[object]) -> tuple[Any, ...]:
        return tuple(values)

    def broadcast(self, values: Columns, source: int = 0) -> tuple[tuple[Any, ...], ...]:
        return (tuple(values[source]),) * self.num_replicas

    def barrier(self, name: str) -> None:
        del name  # nobody else is there to wait for

    def value_and_grad(
        self, fn: Callable[..., Any], variables: Sequence[Any], has_aux: bool = False
    ) -> Callable[..., tuple[Any, list[Any]]]:
        def scalar(*args: Any, **kwargs: Any) -> float:
            result = fn(*args, **kwargs)
            return float(result[0] if has_aux else result)

        def both(*args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
            gradients = [_numeric_gradient(variable, lambda: scalar(*args, **kwargs)) for variable in variables]
            return fn(*args, **kwargs), gradients

        return both

    def snapshot(self, variables: Sequence[Any]) -> list[Any]:
        return [variable.value.copy() for variable in variables]

    def restore(self, variables: Sequence[Any], saved: Sequence[Any]) -> None:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)

    def _rows(self, values: Columns) -> list[list[np.ndarray]]:
        assert len(values) == self.num_replicas, "one entry per local replica"
        if len({len(column) for column in values}) > 1:
            raise StructureMismatchError(f"replicas gave different numbers of values: {[len(v) for v in values]}")
        return [[np.asarray(array) for array in row] for row in zip(*values, strict=True)]


def _array(value: object) -> np.ndarray:
    if isinstance(value, bool | np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, int):
        return np.asarray(value, np.int32)
    if isinstance(value, float):
        return np.asarray(value, np.float32)
    raise ArgumentTypeError(f"{value!r} can't be made into a tensor", fix="give a number or an array")


def _reduced(op: Reduction, row: list[np.ndarray]) -> np.ndarray:
    stacked = np.stack(row)
    if op is Reduction.MIN:
        return np.asarray(stacked.min(axis=0))
    if op is Reduction.MAX:
        return np.asarray(stacked.max(axis=0))
    if op is Reduction.SUM:
        return np.asarray(stacked.sum(axis=0, dtype=stacked.dtype))
    whole = np.issubdtype(stacked.dtype, np.integer)
    return np.asarray(stacked.mean(axis=0, dtype=np.float64 if whole else stacked.dtype))


def _concatenated(row: list[np.ndarray], axis: int) -> np.ndarray:
    first = row[0]
    for other in row[1:]:
        same_rank = other.ndim == first.ndim
        if not same_rank or other.dtype != first.dtype or _without(other, axis) != _without(first, axis):
            raise StructureMismatchError(
                f"all_gather along axis {axis} of values that differ elsewhere too: {_kinds(row)}"
            )
    return np.concatenate(row, axis)


def _without(array: np.ndarray, axis: int) -> list[int]:
    shape = list(array.shape)
    del shape[axis]
    return shape


def _kinds(row: list[np.ndarray]) -> str:
    return ", ".join(f"replica {n}: {array.shape} {array.dtype}" for n, array in enumerate(row))


def _numeric_gradient(variable: Any, scalar: Callable[[], float], step: float = 1e-3) -> np.ndarray:
    saved = variable.value.copy()
    gradient = np.zeros_like(saved)
    for place in np.ndindex(saved.shape):
        sides: list[float] = []
        for sign in (1, -1):
            moved = saved.copy()
            moved[place] += sign * step
            variable.assign(moved)
            sides.append(scalar())
        gradient[place] = (sides[0] - sides[1]) / (2 * step)
    variable.assign(saved)
    return gradient
