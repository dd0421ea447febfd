# SPDX-License-Identifier: Apache-2.0
"""What a data set offers to those who divide it: global batches, or single rows of them, or its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from stratagem._core.input_options import AutoShardPolicy
from stratagem.errors import ArgumentError

__all__ = ["RowSource", "Source"]


class Source(ABC):
    """A data set that gives global batches, structures of arrays or tensors whose first dimension counts rows.

    Attributes:
        kind: What it is, for people: "tf.data.Dataset".
        policy: What its own options ask for.
        resumable: Whether a pass can begin at any batch without reading those before it.
    """

    kind: str
    policy: AutoShardPolicy = AutoShardPolicy.AUTO
    resumable: bool = False

    @property
    @abstractmethod
    def num_batches(self) -> int | None:
        """Batches of a pass; None if nobody knows, or there is no end."""

    @property
    def element_spec(self) -> Any | None:
        """Structure of `TensorSpec`s of a global batch; None if only an element can tell."""
        return None

    def num_files(self, wanted: int) -> int | None:
        """The files it reads, counted up to `wanted`; None if it reads none that could be divided."""
        del wanted
        return None

    def of_worker(self, policy: AutoShardPolicy, count: int, index: int) -> Source:
        """What worker `index` of `count` reads by FILE or HINT.

        Raises:
            ArgumentError: it can't be divided so.
        """
        raise ArgumentError(
            f"a {self.kind} can't be divided by {policy.name} as share {index} of {count}",
            fix="use AutoShardPolicy.DATA, or AUTO",
        )

    @abstractmethod
    def batches(self, start: int) -> Iterator[Any]:
        """A pass over the data set, without its first `start` batches."""


class RowSource(Source):
    """A data set of which single rows can be read."""

    resumable = True

    @abstractmethod
    def draw(self) -> Any:
        """What decides the order of a pass; drawn in one process, picklable, and given to all."""

    @abstractmethod
    def plans(self, drawn: Any, start: int) -> Iterator[Sequence[int]]:
        """The rows of each global batch, in order, without the first `start` batches."""

    @abstractmethod
    def read(self, rows: Sequence[int]) -> Any:
        """A batch of some rows; of none, one without rows."""

    def batches(self, start: int) -> Iterator[Any]:
        for rows in self.plans(self.draw(), start):
            yield self.read(rows)
