# SPDX-License-Identifier: Apache-2.0
"""The board: a small segment where each replica of a host writes what it is doing.

Whoever waits reads there whom it waits for, what that replica did last, and whether it is still alive.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable

import torch

from stratagem.engines.torch._header import Header
from stratagem.engines.torch._segment import Handle, Segment, aligned
from stratagem.engines.torch._waiting import wait_until
from stratagem.errors import CollectiveMismatchError, CollectiveTimeoutError, ReplicaFailedError

_HEADER_BYTES = 64 * 1024
_NUM_SLOTS = 2
_COLUMNS = 8
_POSTED, _DONE, _LEFT, _PID = range(4)


class Board:
    """One replica's view of the board.

    Collectives are numbered from 1. A replica posts collective k with its header, reads the others' headers
    once they have posted k too, and marks k done when it has read what it needs. Headers lie in two slots in
    turn, so a replica can post k + 1 while others still read k.
    """

    def __init__(self, segment: Segment, rank: int, world_size: int, timeout_seconds: float) -> None:
        self.segment = segment
        self.rank = rank
        self.world_size = world_size
        self.timeout_seconds = timeout_seconds
        self._flags = segment.tensor(torch.int64, 0, world_size * _COLUMNS).view(world_size, _COLUMNS).numpy()
        self._headers_at = aligned(world_size * _COLUMNS * 8)
        self._number = 0
        self._flags[rank, _PID] = os.getpid()

    @classmethod
    def create(cls, rank: int, world_size: int, timeout_seconds: float) -> Board:
        """The board itself; replica 0 makes it."""
        num_bytes = aligned(world_size * _COLUMNS * 8) + world_size * _NUM_SLOTS * _HEADER_BYTES
        return cls(Segment.create(num_bytes, "board"), rank, world_size, timeout_seconds)

    @classmethod
    def open(cls, handle: Handle, rank: int, world_size: int, timeout_seconds: float) -> Board:
        """The board that replica 0 made."""
        return cls(Segment.open(handle), rank, world_size, timeout_seconds)

    @property
    def slot(self) -> int:
        """The slot of the current collective, for what else a replica keeps twice."""
        return self._number % _NUM_SLOTS

    def begin(self, what: str) -> None:
        """Start the next collective once its slot is no longer read by anyone."""
        self._number += 1
        self._wait_for_flag(_DONE, self._number - _NUM_SLOTS, what)

    def exchange(self, header: Header) -> list[Header]:
        """Post this replica's header; return those of all replicas, in replica order."""
        data = pickle.dumps(header)
        assert len(data) + 8 <= _HEADER_BYTES, "details belong in the payload"
        at = self._slot_at(self.rank, self._number)
        self.segment.write(at, len(data).to_bytes(8, "little"))
        self.segment.write(at + 8, data)
        self._flags[self.rank, _POSTED] = self._number
        self._wait_for_flag(_POSTED, self._number, str(header))
        return [header if rank == self.rank else self._read(rank, self._number) for rank in range(self.world_size)]

    def end(self) -> None:
        """Everything of the current collective has been read."""
        self._flags[self.rank, _DONE] = self._number

    def leave(self) -> None:
        """This replica takes part in nothing any more; whoever waits for it learns so."""
        self._flags[self.rank, _LEFT] = 1

    def wait_for(self, ready: Callable[[], bool], what: str, missing: Callable[[], list[int]]) -> None:
        """Wait until `ready()`.

        Args:
            what: What this replica is doing, for the error.
            missing: The replicas that it still waits for.

        Raises:
            CollectiveTimeoutError: a replica did not come in time.
            CollectiveMismatchError: a replica's program has ended.
            ReplicaFailedError: a replica's process died.
        """

        def on_stall() -> None:
            for rank in missing():
                self._raise_if_gone(rank, what, ready)

        wait_until(
            ready,
            timeout_seconds=self.timeout_seconds,
            on_stall=on_stall,
            on_timeout=lambda seconds: self._timeout(seconds, what, missing()),
        )

    def _wait_for_flag(self, column: int, number: int, what: str) -> None:
        flags = self._flags[:, column]
        self.wait_for(
            lambda: bool((flags >= number).all()),
            what,
            lambda: [rank for rank in range(self.world_size) if flags[rank] < number],
        )

    def _slot_at(self, rank: int, number: int) -> int:
        return self._headers_at + (rank * _NUM_SLOTS + number % _NUM_SLOTS) * _HEADER_BYTES

    def _read(self, rank: int, number: int) -> Header:
        at = self._slot_at(rank, number)
        length = int.from_bytes(self.segment.read(at, 8), "little")
        return pickle.loads(self.segment.read(at + 8, length))

    def _raise_if_gone(self, rank: int, what: str, ready: Callable[[], bool]) -> None:
        if self._flags[rank, _LEFT] and not ready():
            raise CollectiveMismatchError(
                f"replica {self.rank} waits in {what}, but the program of replica {rank} has ended",
                fix="make every replica call the same collectives in the same order",
            )
        pid = int(self._flags[rank, _PID])
        if pid and not _alive(pid) and not ready():
            raise ReplicaFailedError(
                f"the process of replica {rank} (pid {pid}) died while replica {self.rank} waited in {what}",
                fix=f"read the last lines that replica {rank} printed",
            )

    def _timeout(self, seconds: float, what: str, missing: list[int]) -> CollectiveTimeoutError:
        names = ", ".join(map(str, missing))
        last = "; ".join(f"replica {rank} is {self._last_seen(rank)}" for rank in missing)
        return CollectiveTimeoutError(
            f"replica {self.rank} waited {seconds:g} seconds in {what} for replica {names} of {self.world_size}: {last}",
            fix="make every replica call the same collectives in the same order; "
            "if it is only slow, set STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS higher",
        )

    def _last_seen(self, rank: int) -> str:
        posted, done = int(self._flags[rank, _POSTED]), int(self._flags[rank, _DONE])
        if posted == 0:
            return "not yet in any collective"
        state = "past" if done >= posted else "in"
        return f"{state} its collective {posted}, {self._read(rank, posted)} (this is number {self._number})"


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The state follows the name, which may hold anything, in parentheses; Z and X are dead.
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
