# SPDX-License-Identifier: Apache-2.0
"""Feeds: the parts of each step for this process's replicas, out of a data set or of every worker's own."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stratagem.data._prefetch import Ahead
from stratagem.data._source import RowSource, Source
from stratagem.data._spec import empty_like, num_rows, rows_of
from stratagem.data._split import Share, share_of
from stratagem.errors import ArgumentTypeError

__all__ = [
    "BatchParts",
    "Divided",
    "Feed",
    "Job",
    "OwnFeed",
    "Place",
    "RowFeed",
    "SharedFeed",
    "Steps",
    "pieces",
    "sets_of",
]

_BLOCK_STEPS = 8  # that workers agree on at once, where nobody knows how many there will be

Parts = list[Any]  # one element for each replica of a process, or of a worker, in order
Steps = Callable[[], Iterator[Parts]]


class BatchParts(list[Any]):
    """The parts of one global batch.

    Args:
        parts: In order.
        shares: Which rows of the batch each part has.
    """

    def __init__(self, parts: Iterable[Any], shares: Sequence[Share]) -> None:
        super().__init__(parts)
        self.shares = shares

    @classmethod
    def cut(cls, batch: Any, begin: int, shares: Sequence[Share]) -> BatchParts:
        """Those of the rows `batch`, of which the first is number `begin` of the global batch."""
        return cls((rows_of(batch, share.start - begin, share.stop - begin) for share in shares), shares)


class Divided(ABC):
    """A data set of which each replica has a part: what layers below strategies see of a `DistributedDataset`."""

    @abstractmethod
    def parts(self, start: int) -> tuple[Iterator[Parts], bool]:
        """A pass without its first `start` steps, as `Feed.open` returns it, before anything goes to a device."""

    @abstractmethod
    def cardinality(self) -> int:
        """Steps of a pass: -1 for one without an end, -2 if nobody knows, as `tf.data` counts."""

    @property
    @abstractmethod
    def num_replicas(self) -> int:
        """Over all processes."""


@dataclass(frozen=True)
class Place:
    """Which replicas are whose. Those of a worker follow each other, and so do those of a process.

    Attributes:
        num_replicas: Over all workers.
        local_ids: This process's.
        num_workers: Each has one input pipeline, and equally many replicas.
    """

    num_replicas: int
    local_ids: tuple[int, ...]
    num_workers: int

    @property
    def per_worker(self) -> int:
        """Replicas of a worker."""
        return self.num_replicas // self.num_workers

    @property
    def worker(self) -> int:
        """The worker that this process belongs to."""
        return self.local_ids[0] // self.per_worker

    @property
    def leads(self) -> bool:
        """Whether this process reads for its worker."""
        return self.local_ids[0] % self.per_worker == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return len(self.local_ids) == self.num_replicas

    def leader(self, worker: int) -> int:
        """The first replica of a worker."""
        return worker * self.per_worker


class Job(Protocol):
    """How the processes tell each other something, all of them at the same time."""

    def say(self, mine: Any) -> list[Any]:
        """What each worker's first process says, by worker; what others say is left out."""
        ...

    def take(self, brought: Any, source: int, what: str) -> Any:
        """What the process of replica `source` brought."""
        ...

    def hand_out(self, items: Iterator[Any] | None, source: int, what: str, depth: int) -> Iterator[Any]:
        """Each of `items`, which the process of replica `source` reads `depth` ahead; others give None."""
        ...


class Feed(ABC):
    """Where the replicas' parts come from."""

    @abstractmethod
    def open(self, start: int) -> tuple[Iterator[Parts], bool]:
        """A pass without its first `start` steps; all processes open it together.

        Returns:
            The steps, and whether they can be read in a thread: no message to another process is among them.
        """


@dataclass(frozen=True)
class RowFeed(Feed):
    """Every process reads its own rows of each global batch."""

    source: RowSource
    place: Place
    job: Job

    def open(self, start: int) -> tuple[Iterator[Parts], bool]:
        first = 0 in self.place.local_ids
        drawn = self.source.draw() if first else None
        if not self.place.is_alone:
            drawn = self.job.take(drawn, 0, "the order of the rows")
        steps: deque[list[Share]] = deque()  # asked for, and not given yet
        # Opened now: a source that reads in processes of its own starts them in this thread.
        return self._parts(self.source.read_each(self._own(drawn, start, steps)), steps), True

    def _own(self, drawn: Any, start: int, steps: deque[list[Share]]) -> Iterator[Sequence[int]]:
        for rows in self.source.plans(drawn, start):
            shares = [share_of(replica, self.place.num_replicas, len(rows)) for replica in self.place.local_ids]
            steps.append(shares)
            yield rows[shares[0].start : shares[-1].stop]

    def _parts(self, read: Iterator[Any], steps: deque[list[Share]]) -> Iterator[Parts]:
        for mine in read:
            shares = steps.popleft()
            yield BatchParts.cut(mine, shares[0].start, shares)


@dataclass(frozen=True)
class SharedFeed(Feed):
    """The chief reads every global batch, and each process takes its rows of it."""

    source: Source
    place: Place
    job: Job
    depth: int

    def open(self, start: int) -> tuple[Iterator[Parts], bool]:
        # Opened now: what is wrong with the data set is said before the first step.
        read = self.source.batches(start) if 0 in self.place.local_ids else None
        # One that is alone divides and places in another thread: a slow source doesn't wait for that either.
        depth = 1 if self.place.is_alone else self.depth
        return self._parts(self.job.hand_out(read, 0, "the next batch", depth)), self.place.is_alone

    def _parts(self, read: Iterator[Any]) -> Iterator[Parts]:
        for batch in read:
            rows = num_rows(batch)
            if rows is None:
                raise ArgumentTypeError(
                    "an element of the data set has no rows, so it can't be divided",
                    fix="batch the data set: dataset.batch(global_batch_size)",
                )
            shares = [share_of(replica, self.place.num_replicas, rows) for replica in self.place.local_ids]
            yield BatchParts.cut(batch, 0, shares)


@dataclass(frozen=True)
class OwnFeed(Feed):
    """Each worker has steps of its own; who has no more gives parts without rows until all have come to their end.

    Attributes:
        steps: Makes this worker's steps, each with a part for all of its replicas; used where this process leads.
        count: How many there are; None if nobody knows.
    """

    steps: Steps
    count: int | None
    place: Place
    job: Job
    depth: int

    def open(self, start: int) -> tuple[Iterator[Parts], bool]:
        mine = itertools.islice(self.steps(), start, None) if self.place.leads else iter(())
        if self.place.is_alone:
            return mine, True
        if self.place.num_workers == 1:
            steps = self.job.hand_out(mine if self.place.leads else None, 0, "the next batch", self.depth)
            return (self._local(step) for step in steps), False
        mine = Ahead(mine, self.depth) if self.place.leads else mine
        first = next(mine, None)
        left = None if self.count is None else max(0, self.count - start)
        said = self.job.say((left, None if first is None else empty_like(first[0])))
        templates = [template for _, template in said if template is not None]
        if not templates:
            return iter(()), True
        mine = mine if first is None else itertools.chain([first], mine)
        empty = [templates[0]] * self.place.per_worker
        counts = [count for count, _ in said]
        steps = self._in_blocks(mine, empty) if None in counts else self._counted(mine, empty, max(counts))
        return (self._local(step) for step in self._shared(steps)), False

    def _counted(self, mine: Iterator[Parts], empty: Parts, count: int) -> Iterator[Parts]:
        return (next(mine, empty) for _ in range(count))

    def _in_blocks(self, mine: Iterator[Parts], empty: Parts) -> Iterator[Parts]:
        while True:
            ready = deque(itertools.islice(mine, _BLOCK_STEPS))
            count = max(self.job.say(len(ready)))
            if count == 0:
                return
            for _ in range(count):
                yield ready.popleft() if ready else empty

    def _shared(self, steps: Iterator[Parts]) -> Iterator[Parts]:
        """The steps of this process's worker, out of those that its leader has read."""
        if len(self.place.local_ids) == self.place.per_worker:
            yield from steps
            return
        while True:
            brought = next(steps, None)
            mine = None
            for worker in range(self.place.num_workers):
                leader = self.place.leader(worker)
                parts = self.job.take(brought, leader, "the next batch")
                mine = parts if worker == self.place.worker else mine
            if mine is None:
                return
            yield mine

    def _local(self, step: Parts) -> Parts:
        first = self.place.leader(self.place.worker)
        return [step[replica - first] for replica in self.place.local_ids]


def pieces(source: Source, place: Place) -> Iterator[Parts]:
    """A worker's steps out of global batches that it has for itself: it takes as many rows as are its in a step."""
    size = 0
    for batch in source.batches(0):
        rows = num_rows(batch) or 0
        size = size or -(-rows // place.num_workers)
        for begin in range(0, rows, size or 1):
            end = min(begin + size, rows)
            shares = [share_of(replica, place.per_worker, end - begin) for replica in range(place.per_worker)]
            yield [rows_of(batch, begin + share.start, begin + share.stop) for share in shares]


def sets_of(batches: Iterator[Any], count: int) -> Iterator[Parts]:
    """Steps of `count` elements each, one for each replica of a worker; in the last, some may be without rows."""
    while elements := list(itertools.islice(batches, count)):
        yield elements + [empty_like(elements[0])] * (count - len(elements))
