# SPDX-License-Identifier: Apache-2.0
"""The ring by which one replica hands out what it reads: in order, bounded, growing, and leaving nothing open."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratagem.engines._handing_out import Said, items_of, said_of
from stratagem.engines.torch._board import Board
from stratagem.engines.torch._ring import Ring, written_ahead
from stratagem.errors import CollectiveMismatchError, CollectiveTimeoutError
from tests.waiting import until

pytestmark = pytest.mark.timeout(30)

WHAT = "the next item"


class Pair:
    """Replicas 0 and 1, both in this process: a ring that 0 writes and 1 takes from."""

    def __init__(self, num_slots: int, timeout_seconds: float = 10.0) -> None:
        self.boards = [Board.create(0, 2, timeout_seconds)]
        self.boards.append(Board.open(self.boards[0].segment.handle, 1, 2, timeout_seconds))
        self.writer, handle = Ring.create(self.boards[0], num_slots)
        self.reader = Ring.open(self.boards[1], handle, 0, num_slots)

    def close(self) -> None:
        self.writer.close()
        self.reader.close()
        self.boards[0].segment.close()


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(*args: Any) -> Pair:
        made.append(Pair(*args))
        return made[-1]

    yield make
    for one in made:
        one.close()


def pickled(items: Iterator[Any]) -> Iterator[tuple[Said, bytes]]:
    return map(Said.pickled, said_of(items))


def open_rings() -> int:
    gc.collect()  # those of earlier tests; a mapping keeps a file open too

    def leads_to(fd: str) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # that of the listing itself
            return ""

    return sum("stratagem-ring" in leads_to(fd) for fd in os.listdir("/proc/self/fd"))


def test_objects_of_any_size_come_in_order_and_each_slot_grows_to_its_largest(pair: Callable[..., Pair]) -> None:
    both = pair(2)
    sizes = (1, 1_000_000, 10, 3_000_000, 0, 2_000_000, 5, 5)
    for begin in range(0, len(sizes), 2):
        for size in sizes[begin : begin + 2]:
            both.writer.write(pickle.dumps(b"x" * size))
        assert [len(both.reader.take(WHAT)) for _ in range(2)] == list(sizes[begin : begin + 2])


def test_there_is_room_for_as_many_as_it_has_slots_until_all_others_have_taken_one(pair: Callable[..., Pair]) -> None:
    both = pair(2)
    for number in range(2):
        assert both.writer.has_room
        both.writer.write(pickle.dumps(number))
    assert both.writer.behind() == [1]
    assert both.reader.take(WHAT) == 0
    assert both.writer.has_room


def test_who_waits_for_an_object_names_the_replica_that_writes(pair: Callable[..., Pair]) -> None:
    both = pair(2, 3.0)
    with pytest.raises(CollectiveTimeoutError, match=r"taking the next item from replica 0 at test_ring.py:\d+ for re"):
        both.reader.take(WHAT)
    both.boards[0].leave()
    with pytest.raises(CollectiveMismatchError, match="the program of replica 0 has ended"):
        both.reader.take(WHAT)


def test_who_reads_names_the_replica_that_does_not_take_what_waits_for_it(pair: Callable[..., Pair]) -> None:
    both = pair(2, 0.2)
    said = written_ahead(both.writer, pickled(iter(range(9))), WHAT, depth=1)
    assert [next(said).item for _ in range(2)] == [0, 1]
    with pytest.raises(CollectiveTimeoutError, match=r"in giving the next item at test_ring.py:\d+ for replica 1 of"):
        next(said)


def test_a_slow_reader_is_waited_for_without_a_limit_where_it_reads_itself(pair: Callable[..., Pair]) -> None:
    def slow() -> Iterator[int]:
        time.sleep(0.5)
        yield 7

    both = pair(2, 0.1)
    assert next(written_ahead(both.writer, pickled(slow()), WHAT, depth=1)).item == 7


def test_it_is_read_no_further_ahead_than_asked_for(pair: Callable[..., Pair]) -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    both = pair(3)
    said = written_ahead(both.writer, pickled(numbers()), WHAT, depth=2)
    until(lambda: len(read) == 3, "two wait, and one is in hand")
    time.sleep(0.1)
    assert len(read) == 3
    assert next(said).item == 0
    until(lambda: len(read) == 4, "one more is read, which waits for room")
    time.sleep(0.1)
    assert len(read) == 4
    assert list(items_of((both.reader.take(WHAT) for _ in range(3)), 0, WHAT)) == [0, 1, 2]


def test_its_thread_ends_and_its_file_is_closed_when_it_is_dropped_while_it_waits_for_room(
    pair: Callable[..., Pair],
) -> None:
    both = pair(2)
    files = open_rings()
    said = written_ahead(both.writer, pickled(iter(range(9))), WHAT, depth=1)
    assert next(said).item == 0
    assert next(said).item == 1  # so there is room again before the thread's queue, and none in the ring
    time.sleep(0.05)
    del said
    gc.collect()
    until(lambda: all(one.name != "stratagem-prefetch" for one in threading.enumerate()), "the thread ends")
    assert open_rings() == files - 1


def test_who_takes_closes_its_file_at_the_end_and_when_it_is_dropped(pair: Callable[..., Pair]) -> None:
    for ends in (True, False):
        both = pair(4)
        files = open_rings()
        for _, data in pickled(iter(range(3))):
            both.writer.write(data)
        found = items_of(both.reader.taken(WHAT), 0, WHAT)
        assert next(found) == 0
        if ends:
            assert list(found) == [1, 2]
        del found
        assert open_rings() == files - 1
