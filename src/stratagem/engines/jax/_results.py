# SPDX-License-Identifier: Apache-2.0
"""What a traced function returned, as arrays that a compiled function can return and the structure around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np

from stratagem._core import nest
from stratagem._core.values import DistributedValues, PerReplica
from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._stacks import ArrayStack

__all__ = ["Results"]


class Results:
    """The structure of a function's result, without its arrays.

    Args:
        result: What the function returned.

    Attributes:
        arrays: The arrays in it, in order; only until `without_arrays`.
    """

    def __init__(self, result: Any) -> None:
        self.arrays: list[Any] = []
        self._leaves = [self._part(leaf) for leaf in nest.flatten(result)]
        self._structure = nest.map_structure(lambda _: None, result)
        self._bare = not nest.is_nested(result)

    def without_arrays(self) -> Results:
        """Forget the arrays, which belong to a trace that ends."""
        self.arrays = []
        return self

    def around(self, arrays: Sequence[Any]) -> Any:
        """The result with `arrays` in it."""
        return self.filled(iter(arrays))

    def filled(self, remaining: Iterator[Any]) -> Any:
        """`around`, with arrays out of an iterator that may hold more."""
        leaves = [part.around(remaining) if isinstance(part, _Place) else part for part in self._leaves]
        return leaves[0] if self._bare else nest.pack(self._structure, leaves)

    def _part(self, leaf: Any) -> Any:
        if isinstance(leaf, DistributedValues) and isinstance(leaf.stack, ArrayStack):
            self.arrays.append(leaf.stack.whole)
            return _Place(leaf.stack.replicas)
        if isinstance(leaf, keras.Variable):
            leaf = leaf.value
        if isinstance(leaf, jax.Array) or (
            isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind not in "USOMm"
        ):
            self.arrays.append(leaf)
            return _Place(None)
        if isinstance(leaf, DistributedValues):
            values = Results(list(leaf.values))
            self.arrays.extend(values.arrays)
            return _Several(type(leaf), leaf, values.without_arrays())
        if leaf is not None and not jax.tree_util.all_leaves([leaf]):
            parts, tree = jax.tree.flatten(leaf, is_leaf=lambda part: part is None)
            inside = Results(parts)
            self.arrays.extend(inside.arrays)
            return _Container(tree, inside.without_arrays())
        return leaf


class _Place:
    """Where an array goes; with `replicas`, as the stack of a value per replica."""

    def __init__(self, replicas: Replicas | None) -> None:
        self._replicas = replicas

    def around(self, remaining: Iterator[Any]) -> Any:
        """The leaf, made of the next arrays."""
        array = next(remaining)
        if self._replicas is None:
            return array
        return PerReplica.of_stack(ArrayStack(array, self._replicas), self._replicas.local_ids)


class _Several(_Place):
    """Where a value goes whose parts are not in one array."""

    def __init__(self, kind: type[DistributedValues], value: DistributedValues, parts: Results) -> None:
        super().__init__(None)
        self._kind, self._ids, self._parts = kind, value.replica_ids, parts

    def around(self, remaining: Any) -> Any:
        return self._kind(
            [part.around(remaining) if isinstance(part, _Place) else part for part in self._parts._leaves], self._ids
        )


class _Container(_Place):
    """Where a container goes that jax knows and `nest` does not, such as a state of Flax."""

    def __init__(self, tree: Any, parts: Results) -> None:
        super().__init__(None)
        self._tree, self._parts = tree, parts

    def around(self, remaining: Any) -> Any:
        return jax.tree.unflatten(self._tree, self._parts.filled(remaining))
