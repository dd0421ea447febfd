# SPDX-License-Identifier: Apache-2.0
"""The board: a small segment where each replica of a host writes what it is doing.

Whoever waits reads there whom it waits for, what that replica did last, and whether it is still alive.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable

from stratagem.engines import _lost
from stratagem.engines._progress import PROGRESS
from stratagem.engines._pulse import Pulse
from stratagem.engines.torch._header import Header
from stratagem.engines.torch._segment import Handle, Segment, aligned
from stratagem.engines.torch._waiting import wait_until
from stratagem.errors import ArgumentError, StratagemError

# Large enough for some 40,000 tensors; what nobody writes to takes no memory.
_HEADER_BYTES = 1024 * 1024
_NUM_SLOTS = 2
_NOTE_SLOT = _NUM_SLOTS
_COLUMNS = 8
_POSTED, _DONE, _LEFT, _PID, _NOTED, _MARK = range(6)
_ENDED, _FAILED = 1, 2  # of _LEFT
_LEAVING_SECONDS = 2.0


class Board:
    """One replica's view of the board.

    Collectives are numbered from 1. A replica posts collective k with its header, reads the others' headers
    once they have posted k too, and marks k done when it has read what it needs. Headers lie in two slots in
    turn, so a replica can post k + 1 while others still read k.
    """

    def __init__(
        self, segment: Segment, rank: int, world_size: int, timeout_seconds: float, pulse: Pulse | None = None
    ) -> None:
        self.segment = segment
        self.rank = rank
        self.world_size = world_size
        self.timeout_seconds = timeout_seconds
        self._pulse = pulse
        self._names = [f"replica {rank}" for rank in range(world_size)] if pulse is None else pulse.names
        self._flags = segment.numbers(0, world_size, _COLUMNS)
        self._headers_at = aligned(world_size * _COLUMNS * 8)
        self._number = 0
        self._left_since: dict[int, float] = {}
        # A pulse that ends the program knows by name who is gone, and what that one did last.
        self._ours_to_tell = pulse is None or not pulse.ends_program
        self._flags[rank, _PID] = os.getpid()

    @classmethod
    def create(cls, rank: int, world_size: int, timeout_seconds: float, pulse: Pulse | None = None) -> Board:
        """The board itself; replica 0 makes it."""
        num_bytes = aligned(world_size * _COLUMNS * 8) + world_size * (_NUM_SLOTS + 1) * _HEADER_BYTES
        return cls(Segment.create(num_bytes, "board"), rank, world_size, timeout_seconds, pulse)

    @classmethod
    def open(
        cls, handle: Handle, rank: int, world_size: int, timeout_seconds: float, pulse: Pulse | None = None
    ) -> Board:
        """The board that replica 0 made."""
        return cls(Segment.open(handle), rank, world_size, timeout_seconds, pulse)

    @classmethod
    def open_marked(
        cls, mark: int, handle: Handle, rank: int, world_size: int, timeout_seconds: float, pulse: Pulse
    ) -> Board | None:
        """The board that replica 0 made and marked; None where `handle` leads elsewhere, as in another container."""
        try:
            segment = Segment.open(handle)
        except (OSError, ValueError):  # no such process or file here, or a smaller one
            return None
        if segment.numbers(0, world_size, _COLUMNS)[0, _MARK] != mark:
            return None
        return cls(segment, rank, world_size, timeout_seconds, pulse)

    def mark(self, mark: int) -> None:
        """Tell this board from other memory by a number that nobody guesses."""
        self._flags[0, _MARK] = mark

    @property
    def slot(self) -> int:
        """The slot of the current collective, for what else a replica keeps twice."""
        return self._number % _NUM_SLOTS

    def begin(self, what: str) -> None:
        """Start the next collective once its slot is no longer read by anyone."""
        self._number += 1
        PROGRESS.number, PROGRESS.doing = self._number, what
        self._wait_for_flag(_DONE, self._number - _NUM_SLOTS, what)

    def exchange(self, header: Header) -> list[Header]:
        """Post this replica's header; return those of all replicas, in replica order."""
        data = pickle.dumps(header)
        if len(data) + 8 > _HEADER_BYTES:
            raise ArgumentError(
                f"{len(header.specs)} tensors are too many for one {header.operation}", fix="join some of them first"
            )
        self._write(self._number % _NUM_SLOTS, data)
        self._flags[self.rank, _POSTED] = self._number
        self._wait_for_flag(_POSTED, self._number, str(header))
        return [header if rank == self.rank else self._header(rank, self._number) for rank in range(self.world_size)]

    def end(self) -> None:
        """Everything of the current collective has been read."""
        self._flags[self.rank, _DONE] = self._number

    def leave(self, failed: bool = False) -> None:
        """This replica takes part in nothing any more; whoever waits for it learns so."""
        self._flags[self.rank, _LEFT] = _FAILED if failed else _ENDED

    def wait_for(self, ready: Callable[[], bool], what: str, missing: Callable[[], list[int]]) -> None:
        """Wait until `ready()`.

        Args:
            what: What this replica is doing, for the error.
            missing: The replicas that it still waits for.

        Raises:
            CollectiveTimeoutError: a replica did not come in time.
            CollectiveMismatchError: a replica's program has ended.
            ReplicaFailedError: a replica's program failed, or its process died.
        """

        def on_stall() -> None:
            if not self._flags[self.rank, _NOTED]:
                self._write(_NOTE_SLOT, what.encode())
                self._flags[self.rank, _NOTED] = 1
            error = self._gone(missing(), what)
            if error is None and self._pulse is not None and self._pulse.lost is not None:
                error = self._pulse.raised()
            if error is not None and not ready():
                raise error

        wait_until(
            ready,
            timeout_seconds=self.timeout_seconds,
            on_stall=on_stall,
            on_timeout=lambda seconds: _lost.late(
                {self._names[rank]: self._last_seen(rank) for rank in missing()},
                self.world_size,
                self._names[self.rank],
                what,
                seconds,
            ),
        )
        self._flags[self.rank, _NOTED] = 0

    def _wait_for_flag(self, column: int, number: int, what: str) -> None:
        flags = self._flags[:, column]
        self.wait_for(
            lambda: bool((flags >= number).all()),
            what,
            lambda: [rank for rank in range(self.world_size) if flags[rank] < number],
        )

    def _slot_at(self, rank: int, slot: int) -> int:
        return self._headers_at + (rank * (_NUM_SLOTS + 1) + slot) * _HEADER_BYTES

    def _write(self, slot: int, data: bytes) -> None:
        at = self._slot_at(self.rank, slot)
        self.segment.write(at, len(data).to_bytes(8, "little"))
        self.segment.write(at + 8, data)

    def _read(self, rank: int, slot: int) -> bytes:
        at = self._slot_at(rank, slot)
        return self.segment.read(at + 8, int.from_bytes(self.segment.read(at, 8), "little"))

    def _header(self, rank: int, number: int) -> Header:
        return pickle.loads(self._read(rank, number % _NUM_SLOTS))

    def _gone(self, missing: list[int], what: str) -> StratagemError | None:
        """The error about a replica that will never come; of several, about the one that is the likeliest cause."""
        left = {rank: int(self._flags[rank, _LEFT]) for rank in missing}
        for rank in missing if self._ours_to_tell else ():
            pid = int(self._flags[rank, _PID])
            if pid and not left[rank] and not _lost.alive(pid):
                return _lost.died(self._names[rank], pid, self._names[self.rank], what)
        rank = max(missing, key=left.__getitem__, default=None)
        if rank is None or not left[rank] or self._is_still_leaving(rank):
            return None
        return _lost.left(self._names[rank], left[rank] == _FAILED, self._names[self.rank], what)

    def _is_still_leaving(self, rank: int) -> bool:
        """Whether a replica has left but not ended; the launcher is to see it end before those that it lets down."""
        since = self._left_since.setdefault(rank, time.monotonic())
        return _lost.alive(int(self._flags[rank, _PID])) and time.monotonic() - since < _LEAVING_SECONDS

    def _last_seen(self, rank: int) -> str:
        posted, done = int(self._flags[rank, _POSTED]), int(self._flags[rank, _DONE])
        if posted == 0:
            return "not yet in any collective"
        number = f"its collective {posted} (this is number {self._number})"
        if self._flags[rank, _NOTED]:
            return f"waiting in {self._read(rank, _NOTE_SLOT).decode()}, {'past' if done >= posted else 'in'} {number}"
        return f"{'past' if done >= posted else 'in'} {self._header(rank, posted)}, {number}"
