# SPDX-License-Identifier: Apache-2.0
"""Whether all replicas came to the same result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def assert_same_on_all_replicas(results: Sequence[T]) -> T:
    """Check that the results of all replicas are equal, bit by bit, and return the one that they share.

    Args:
        results: One a replica, as `ReplicaPool.run` returns them: numbers, strings, arrays, or dicts, lists, tuples of
            them. NaN equals NaN.

    Raises:
        AssertionError: two differ; the text says which and where.

    Example:
        >>> assert_same_on_all_replicas([{"loss": 0.5}, {"loss": 0.5}])
        {'loss': 0.5}
        >>> assert_same_on_all_replicas([{"loss": 0.5}, {"loss": 0.25}])
        Traceback (most recent call last):
        AssertionError: replica 1 differs from replica 0 at ['loss']: 0.25 instead of 0.5
    """
    if not results:
        raise AssertionError("there are no results to compare")
    for replica_id, result in enumerate(results[1:], start=1):
        difference = _difference(results[0], result, "")
        if difference is not None:
            raise AssertionError(f"replica {replica_id} differs from replica 0{difference}")
    return results[0]


def _difference(expected: Any, actual: Any, path: str) -> str | None:
    at = f" at {path}" if path else ""
    if type(expected) is not type(actual):
        return f"{at}: a {type(actual).__name__} instead of a {type(expected).__name__}"
    if isinstance(expected, Mapping):
        if expected.keys() != actual.keys():
            return f"{at}: keys {sorted(map(str, actual))} instead of {sorted(map(str, expected))}"
        pairs = [(f"[{key!r}]", expected[key], actual[key]) for key in expected]
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(actual):
            return f"{at}: {len(actual)} entries instead of {len(expected)}"
        pairs = [(f"[{index}]", *both) for index, both in enumerate(zip(expected, actual, strict=True))]
    else:
        return None if _equal(expected, actual) else f"{at}: {actual!r} instead of {expected!r}"
    differences = (_difference(left, right, path + step) for step, left, right in pairs)
    return next((difference for difference in differences if difference is not None), None)


def _equal(expected: Any, actual: Any) -> bool:
    if not hasattr(expected, "__array__") and not isinstance(expected, (int, float, complex)):
        return bool(expected == actual)
    left, right = np.asarray(expected), np.asarray(actual)
    inexact = np.issubdtype(left.dtype, np.inexact)
    return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=inexact)
