# SPDX-License-Identifier: Apache-2.0
"""What the elements of a data set look like: shapes and dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stratagem._core import nest

__all__ = ["PerReplicaSpec", "TensorSpec", "empty_like", "num_rows", "rows_of", "spec_of"]


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor; a size that is not always the same is None."""

    shape: tuple[int | None, ...]
    dtype: str


class PerReplicaSpec(tuple[TensorSpec, ...]):
    """The spec of each replica's part of an element: the counterpart of `tf.distribute`'s PerReplicaSpec.

    >>> PerReplicaSpec([TensorSpec((None,), "int64")] * 2)
    PerReplicaSpec(TensorSpec(shape=(None,), dtype='int64'), TensorSpec(shape=(None,), dtype='int64'))
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self))})"


def spec_of(element: Any, rows: int | None) -> Any:
    """The structure of `element` with a `TensorSpec` for each leaf; `rows` stands in its first dimension."""

    def spec(leaf: Any) -> TensorSpec:
        shape = tuple(int(size) for size in np.shape(leaf))
        dtype = str(getattr(leaf, "dtype", np.asarray(leaf).dtype)).removeprefix("torch.")
        return TensorSpec((rows, *shape[1:]) if shape else shape, dtype)

    return nest.map_structure(spec, element)


def num_rows(element: Any) -> int | None:
    """The rows of an element, as its first leaf with a dimension has them; None if there is none."""
    for leaf in nest.flatten(element):
        if getattr(leaf, "ndim", 0):
            return int(leaf.shape[0])
    return None


def rows_of(element: Any, start: int, stop: int) -> Any:
    """Some rows of an element; leaves without dimensions, which every replica gets, stay whole."""
    return nest.map_structure(lambda leaf: leaf[start:stop] if getattr(leaf, "ndim", 0) else leaf, element)


def empty_like(element: Any) -> Any:
    """`element` without rows."""
    return rows_of(element, 0, 0)
