# SPDX-License-Identifier: Apache-2.0
"""A ring in shared memory: one replica writes objects ahead of time, and each of the others takes them when it wants.

So whoever wants the next object needs no other replica for it, where the one that writes is ahead.
"""

from __future__ import annotations

import functools
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

from stratagem.data._prefetch import Ahead
from stratagem.engines._handing_out import Said
from stratagem.engines.torch._board import Board
from stratagem.engines.torch._header import callers_line
from stratagem.engines.torch._segment import Handle, Segment, aligned
from stratagem.engines.torch._waiting import nap

_FIRST_SLOT_BYTES = 64 * 1024
_AT, _NUM_BYTES, _CAPACITY = range(3)  # columns of a slot's row


class Ring:
    """One replica's view of a ring.

    In the segment: how many objects are written, how many each replica has taken, a row for each slot that says where
    it lies, and the slots. A slot that is too small gets another place at the end of the segment, which grows.

    Args:
        board: Of the job.
        segment: As `create` makes it.
        source: The replica that writes.
        num_slots: The most that are written before the slowest replica has taken them.
    """

    def __init__(self, board: Board, segment: Segment, source: int, num_slots: int) -> None:
        self._board = board
        self._segment = segment
        self._source = source
        self._num_slots = num_slots
        self._others = [rank for rank in range(board.world_size) if rank != source]
        self._counts = segment.numbers(0, board.world_size)  # the source's is what it has written
        self._rows = segment.numbers(_rows_at(board.world_size), num_slots, 3)

    @classmethod
    def create(cls, board: Board, num_slots: int) -> tuple[Ring, Handle]:
        """A ring for this replica to write, and how the others open it."""
        slots_at = _slots_at(board.world_size, num_slots)
        segment = Segment.create(slots_at + num_slots * _FIRST_SLOT_BYTES, "ring")
        ring = cls(board, segment, board.rank, num_slots)
        for number, row in enumerate(ring._rows):
            row[_AT], row[_CAPACITY] = slots_at + number * _FIRST_SLOT_BYTES, _FIRST_SLOT_BYTES
        return ring, segment.handle

    @classmethod
    def open(cls, board: Board, handle: Handle, source: int, num_slots: int) -> Ring:
        """The ring that another replica made."""
        return cls(board, Segment.open(handle, grows=True), source, num_slots)

    def close(self) -> None:
        """Give up what a process has few of; not to be used any more."""
        self._segment.close()

    @property
    def has_room(self) -> bool:
        """Whether the next object's slot has been read by all."""
        return not self.behind()

    def behind(self) -> list[int]:
        """The replicas that have not yet taken what lies in the next object's slot."""
        written = self._counts[self._source]
        return [rank for rank in self._others if written - self._counts[rank] >= self._num_slots]

    def write(self, data: bytes) -> None:
        """Add an object; only where there is room."""
        written = int(self._counts[self._source])
        row = self._rows[written % self._num_slots]
        if len(data) > row[_CAPACITY]:
            row[_AT], row[_CAPACITY] = self._segment.num_bytes, aligned(2 * len(data))
            self._segment.grow(int(row[_AT] + row[_CAPACITY]))
        self._segment.write(int(row[_AT]), data)
        row[_NUM_BYTES] = len(data)
        self._counts[self._source] = written + 1

    def wait_for_room(self, what: str) -> None:
        """Raises what `Board.wait_for` does where a replica does not take what waits for it."""
        self._board.wait_for(lambda: self.has_room, f"giving {what} at {callers_line()}", self.behind)

    def take(self, what: str) -> Any:
        """The next object; raises what `Board.wait_for` does where it does not come."""
        mine = self._board.rank
        taken, source = int(self._counts[mine]), self._source
        if self._counts[source] <= taken:
            doing = f"taking {what} from replica {source} at {callers_line()}"
            self._board.wait_for(lambda: bool(self._counts[source] > taken), doing, lambda: [source])
        at, num_bytes, _ = map(int, self._rows[taken % self._num_slots])
        if at + num_bytes > self._segment.num_bytes:
            self._segment.see_growth()
        with self._segment.view(at, num_bytes) as data:
            value = pickle.loads(data)
        self._counts[mine] = taken + 1
        return value

    def taken(self, what: str) -> Iterator[Said]:
        """All that the source says, taken one by one."""
        try:
            while True:
                yield self.take(what)
        finally:
            self.close()


def written_ahead(ring: Ring, pickled: Iterator[tuple[Said, bytes]], what: str, depth: int) -> Iterator[Said]:
    """All that is said, here in the replica that writes the ring.

    Args:
        ring: It is written in a thread.
        pickled: Read in that thread alone.
        what: Names an item in errors.
        depth: The most items that wait.
    """
    stop = threading.Event()  # the thread may be waiting for room when this is dropped
    return Ahead(_written(ring, pickled, stop), depth, functools.partial(ring.wait_for_room, what), stop)


def _written(ring: Ring, pickled: Iterator[tuple[Said, bytes]], stop: threading.Event) -> Iterator[Said]:
    try:
        for said, data in pickled:
            begun = time.monotonic()
            while not ring.has_room and not stop.is_set():
                nap(time.monotonic() - begun)
            if stop.is_set():
                return
            ring.write(data)
            yield said
            if said.error is not None:
                return
    finally:
        ring.close()


def _rows_at(world_size: int) -> int:
    return aligned(8 * world_size)


def _slots_at(world_size: int, num_slots: int) -> int:
    return _rows_at(world_size) + aligned(8 * 3 * num_slots)
