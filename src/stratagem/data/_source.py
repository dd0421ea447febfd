# SPDX-License-Identifier: Apache-2.0
"""What a data set offers to those who divide it: global batches, or single rows of them, or its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from stratagem._core.input_options import AutoShardPolicy
from stratagem.data._spec import empty_like
from stratagem.errors import ArgumentError

__all__ = ["OwnShard", "RowSource", "Source"]


class OwnShard(NamedTuple):
    """What leaves one process's rows in a data set and drops the others, before Stratagem has seen them.

    Attributes:
        name: What it is, for people: "DistributedSampler".
        instead: What to write without it.
    """

    name: str
    instead: str


class Source(ABC):
    """A data set that gives global batches, structures of arrays or tensors whose first dimension counts rows.

    Attributes:
        kind: What it is, for people: "tf.data.Dataset".
        policy: What its own options ask for.
        resumable: Whether a pass can begin at any batch without reading those before it.
        own_shard: What divides it already; None if nothing is known to.
    """

    kind: str
    policy: AutoShardPolicy = AutoShardPolicy.AUTO
    resumable: bool = False
    own_shard: OwnShard | None = None

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

    def read_each(self, plans: Iterable[Sequence[int]]) -> Iterator[Any]:
        """A batch for each of `plans`, in order; those that read ahead ask for several before they give one."""
        return _each(self.read, plans)

    def batches(self, start: int) -> Iterator[Any]:
        return self.read_each(self.plans(self.draw(), start))


def _each(read: Callable[[Sequence[int]], Any], plans: Iterable[Sequence[int]]) -> Iterator[Any]:
    empty: Any = None
    for rows in plans:
        # What a batch without rows looks like was told by the one before: no row is read for it.
        batch = read(rows) if len(rows) or empty is None else empty
        empty = empty_like(batch)
        yield batch
