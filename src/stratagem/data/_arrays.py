# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory, cut into global batches."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stratagem._core import nest
from stratagem.data._source import RowSource
from stratagem.data._spec import spec_of
from stratagem.errors import ArgumentError

__all__ = ["ArrayDataset"]


class ArrayDataset(RowSource):
    """Arrays as a data set of global batches, to give to `strategy.experimental_distribute_dataset`.

    `tf.distribute` has none; it is what `tf.data.Dataset.from_tensor_slices(arrays).shuffle(n).batch(batch_size)` is
    there. Each process touches its own rows only.

    Args:
        arrays: A structure of NumPy arrays, torch tensors or jax arrays with equally many rows.
        batch_size: Rows of a global batch.
        shuffle: Whether each pass draws a new order of all rows.
        seed: For the orders; drawn anew for each pass if it is not given.
        drop_remainder: Whether to leave out a last batch with fewer rows.

    Raises:
        ArgumentError: the arrays have different numbers of rows, or `batch_size` is less than 1.

    >>> [batch.tolist() for batch in ArrayDataset(np.arange(5), batch_size=2).batches(0)]
    [[0, 1], [2, 3], [4]]
    """

    kind = "ArrayDataset"

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        drop_remainder: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ArgumentError(f"batch_size={batch_size} is less than 1", fix="give the rows of a global batch")
        self._arrays = nest.map_structure(_array, arrays)
        counts = {len(leaf) for leaf in nest.flatten(self._arrays)}
        if len(counts) != 1:
            raise ArgumentError(
                f"the arrays have {' and '.join(map(str, sorted(counts)))} rows", fix="give each as many rows"
            )
        (self.num_rows,) = counts
        self.batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._passes = 0
        self._used = self.num_rows // batch_size * batch_size if drop_remainder else self.num_rows

    @property
    def num_batches(self) -> int:
        return -(-self._used // self.batch_size)

    @property
    def element_spec(self) -> Any:
        even = self._used % self.batch_size == 0
        return spec_of(self._arrays, self.batch_size if even else None)

    def draw(self) -> list[int]:
        self._passes += 1
        return [secrets.randbits(62)] if self._seed is None else [self._seed, self._passes]

    def plans(self, drawn: list[int], start: int) -> Iterator[Sequence[int]]:
        order: Any = range(self.num_rows)
        if self._shuffle:
            order = np.random.default_rng(drawn).permutation(self.num_rows)
        for at in range(start * self.batch_size, self._used, self.batch_size):
            yield order[at : min(at + self.batch_size, self._used)]

    def read(self, rows: Sequence[int]) -> Any:
        taken = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        return nest.map_structure(lambda leaf: leaf[taken], self._arrays)


def _array(leaf: Any) -> Any:
    if hasattr(leaf, "ndim") and leaf.ndim:
        return leaf
    array = np.asarray(leaf)
    if array.ndim:
        return array
    raise ArgumentError(f"{leaf!r:.60} has no rows", fix="give arrays whose first dimension counts rows")
