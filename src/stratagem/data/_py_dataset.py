# SPDX-License-Identifier: Apache-2.0
"""Keras's `PyDataset` as a source."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from stratagem.data._iterables import checked
from stratagem.data._source import Source

__all__ = ["PyDatasetSource"]


class PyDatasetSource(Source):
    """A `keras.utils.PyDataset`: its element i is global batch i, which the chief reads.

    The processes do not read their rows of it themselves: `__getitem__` may draw random numbers, and `on_epoch_end` a
    new order, and every process would draw others.

    Args:
        dataset: The data set.
    """

    kind = "keras.utils.PyDataset"
    resumable = True

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    @property
    def num_batches(self) -> int | None:
        try:
            return self._dataset.num_batches
        except NotImplementedError:  # Keras's own: neither it nor `__len__` was defined, so there is no end
            return None

    def batches(self, start: int) -> Iterator[Any]:
        self._dataset.on_epoch_begin()
        count = self.num_batches
        for index in itertools.count(start) if count is None else range(start, count):
            yield checked(self._dataset[index], self.kind)
        self._dataset.on_epoch_end()
