# SPDX-License-Identifier: Apache-2.0
"""Workers, simulated one thread each: a feed of its own for each, and what they are given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stratagem.data._feeds import Feed, Place

__all__ = ["Job", "Make", "Threads", "run"]

LIMIT_SECONDS = 20.0


class Threads:
    """Processes that are threads; counts how often they spoke."""

    def __init__(self, count: int) -> None:
        self.messages = 0
        self._barrier = threading.Barrier(count)
        self._said: list[Any] = [None] * count

    def _exchange(self, rank: int, mine: Any) -> list[Any]:
        self._said[rank] = mine
        self._barrier.wait(LIMIT_SECONDS)
        everyones = list(self._said)
        self._barrier.wait(LIMIT_SECONDS)
        if rank == 0:
            self.messages += 1
        return everyones

    def of(self, rank: int, place: Place) -> Job:
        return Job(self, rank, place)


class Job:
    def __init__(self, threads: Threads, rank: int, place: Place) -> None:
        self._threads, self._rank, self._place = threads, rank, place

    def say(self, mine: Any) -> list[Any]:
        everyones = self._threads._exchange(self._rank, mine)
        share = len(everyones) // self._place.num_workers
        return [everyones[worker * share] for worker in range(self._place.num_workers)]

    def take(self, brought: Any, source: int, what: str) -> Any:
        return self._threads._exchange(self._rank, brought)[source]

    def hand_out(self, items: Iterator[Any] | None, source: int, what: str, depth: int) -> Iterator[Any]:
        while True:
            item = self.take(None if items is None else next(items, None), source, what)
            if item is None:
                return
            yield item


Make = Callable[[Place, Job], Feed]


def run(
    make: Make, *, processes: int, workers: int, rows: Callable[[Any], list[int]] = lambda part: part.tolist()
) -> tuple[list[list[list[int]]], Threads]:
    """What each process, with one replica, is given step by step; `rows` tells the rows of a part."""
    threads = Threads(processes)

    def one(rank: int) -> list[list[int]]:
        place = Place(processes, (rank,), workers)
        return [rows(parts[0]) for parts in make(place, threads.of(rank, place)).open(0)[0]]

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, range(processes), timeout=LIMIT_SECONDS)), threads
