# SPDX-License-Identifier: Apache-2.0
"""The pulse of a job: what each process tells the others of itself, a few times a second, from a thread of its own.

By it a process that froze, or whose network is gone, is told from one that is only slow; the survivors' error says what
it did last; and all processes agree on the step at which they stop when one of them is asked to.
"""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratagem.engines import _lost
from stratagem.engines._progress import PROGRESS
from stratagem.errors import StratagemError

__all__ = ["Pulse", "Sign", "Store", "StoreGoneError"]

BEAT_SECONDS = 0.3
_SILENT_BEATS = 4  # after these a process that broke its connections counts as gone
_END_SECONDS = 2.0  # for the program to notice a loss by itself, before it is ended
_MARGIN_SECONDS = 2.0  # for what else stands between a loss and the end: beats, an error's way up, exit handlers
_BEGIN_SECONDS = 20.0  # from the meeting to a first sign, on a busy machine
_KEEPER = 0


class StoreGoneError(Exception):
    """The store does not answer: the process that keeps it, the first of the job, is gone."""


class Store(Protocol):
    """Where the processes of a job leave what the others are to read; may be called from several threads."""

    def put(self, key: str, value: bytes) -> None:
        """Leave a value, in the place of the one before it."""

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of some keys, None for those that nobody has left yet."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a process says of itself.

    Attributes:
        beat: Grows with every sign.
        host, pid: The process.
        step: Its last step.
        number: The number of its last collective.
        doing: That collective.
        left: Whether its program has "ended" or "failed"; "" if neither.
        asks_to_stop: It was told to stop.
        stop_at: It can stop there at the earliest: the number of steps done. None while it knows of no request.
    """

    beat: int
    host: str
    pid: int
    step: int
    number: int
    doing: str
    left: str
    asks_to_stop: bool
    stop_at: int | None

    @property
    def died(self) -> bool:
        """Whether the process has ended without a word; of another host's processes nothing is known."""
        return not self.left and self.host == socket.gethostname() and not _lost.alive(self.pid)


class Pulse:
    """This process's pulse, and what it hears of the others'.

    Args:
        store: What all processes of the job reach.
        rank: This process.
        names: For people, by rank: "replica 1", or "/worker:1 (host-b:2222)".
        failure_timeout_seconds: So long after a process has fallen silent this one has ended.
        kept_by_first: Whether the store goes with process 0.
        ends_program: Whether to end a program that goes on without the lost process; else it may.
        stalled: Says why the program has come no further for too long, if it has.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        names: Sequence[str],
        *,
        failure_timeout_seconds: float,
        kept_by_first: bool = False,
        ends_program: bool = True,
        stalled: Callable[[], StratagemError | None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.names = tuple(names)
        self.lost: StratagemError | None = None
        self._store = store
        self._kept_by_first = kept_by_first
        self.ends_program = ends_program
        self._limit_seconds = max(failure_timeout_seconds / 2, failure_timeout_seconds - _END_SECONDS - _MARGIN_SECONDS)
        self._stalled = stalled
        self._host = socket.gethostname()
        self._beat = 0
        self._left = ""
        self._signs: list[Sign | None] = [None] * len(names)
        now = time.monotonic()
        self._heard = [now] * len(names)
        self._looked = now
        self._said = threading.Event()
        self._closing = threading.Event()
        self._boundary = threading.Lock()
        self._asks_to_stop = False
        self._steps_done = 0
        self._stop_at: int | None = None
        self._thread = threading.Thread(target=self._run, name="stratagem-pulse", daemon=True)
        self._watch = threading.Thread(target=self._watch_store, name="stratagem-pulse-watch", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        # Runs after what was registered later: whatever leaves the job in good order.
        atexit.register(_lost.exit_as_lost)
        self._thread.start()
        if self._kept_by_first and self.rank != _KEEPER:
            self._watch.start()

    def close(self, *, failed: bool = False) -> None:
        """Tell the others that this program is at its end, and stop. Idempotent."""
        if self._closing.is_set():
            return
        self._left = "failed" if failed else "ended"
        self._closing.set()
        self._thread.join(BEAT_SECONDS * _SILENT_BEATS)

    def wait_for_the_others(self, seconds: float) -> None:
        """Wait until all others have left, which they can only tell while this process is there, but not for longer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self._listen()
            except StoreGoneError:
                return
            if all((sign := self._signs[rank]) is None or sign.left or self._dead(rank) for rank in self._others()):
                return
            time.sleep(BEAT_SECONDS / 6)

    def sign_of(self, rank: int) -> Sign | None:
        """What was heard of a process last."""
        return self._signs[rank]

    def ask(self, rank: int) -> Sign | None:
        """What a process says now; what was heard last where the store is gone."""
        try:
            (data,) = self._store.read([_key(rank)])
        except StoreGoneError:
            return self._signs[rank]
        return None if data is None else pickle.loads(data)

    def leave_to_program(self) -> None:
        """The program raises an error about a lost process by itself, and need not be ended from outside."""
        self._said.set()

    def raised(self) -> StratagemError:
        """The error about the lost process, which the caller raises."""
        assert self.lost is not None
        self.leave_to_program()
        return self.lost

    def whoever_broke(self, what: str) -> StratagemError | None:
        """The error about the process that has gone, for a program whose connections broke; None if all live."""
        deadline = time.monotonic() + 2 * _SILENT_BEATS * BEAT_SECONDS
        while time.monotonic() < deadline:
            silent = [rank for rank in self._others() if self._silent_seconds(rank) > _SILENT_BEATS * BEAT_SECONDS]
            if self.lost is None and silent:
                self.lost = self._error(max(silent, key=self._silent_seconds), "broke its connections")
            if self.lost is not None:
                return self.raised()
            time.sleep(BEAT_SECONDS / 6)
        # Only now: whoever lost another fails as well, and is not to blame.
        for rank in self._others():
            sign = self._signs[rank]
            if sign is not None and sign.left == "failed":
                return _lost.left(self.names[rank], True, self.names[self.rank], what)
        return None

    def request(self) -> None:
        """Ask all processes to stop at the same step. Safe in a signal handler."""
        self._asks_to_stop = True

    def stop_here(self, step: int) -> bool:
        """Whether all processes stop now that `step` steps are done; to be asked after each step, on all of them.

        Raises:
            WorkerLostError: a process was lost before all had agreed.
        """
        with self._boundary:
            self._steps_done = step
            stop_at = self._stop_at
        if stop_at is None or step < stop_at:
            return False
        # Nobody runs on past the step that it has named, so all come to know the last of them in time.
        while (agreed := self._agreed()) is None:
            if self.lost is not None:
                raise self.raised()
            time.sleep(BEAT_SECONDS / 6)
        return step >= agreed

    def asked_by(self) -> str:
        """The names of the processes that were told to stop."""
        asked = {rank for rank in self._others() if (sign := self._signs[rank]) is not None and sign.asks_to_stop}
        if self._asks_to_stop:
            asked.add(self.rank)
        return ", ".join(self.names[rank] for rank in sorted(asked))

    def _agreed(self) -> int | None:
        named = [self._stop_at]
        for rank in self._others():
            sign = self._signs[rank]
            if sign is None or not sign.left:
                named.append(None if sign is None else sign.stop_at)
        steps = [step for step in named if step is not None]
        return max(steps) if len(steps) == len(named) else None

    def _others(self) -> list[int]:
        return [rank for rank in range(len(self.names)) if rank != self.rank]

    def _silent_seconds(self, rank: int) -> float:
        """How long a process has not been heard of; 0 of one that has left. All begin when they have met."""
        sign = self._signs[rank]
        return 0.0 if sign is not None and sign.left else self._looked - self._heard[rank]

    def _run(self) -> None:
        while True:
            try:
                self._tell()
                self._listen()
            except StoreGoneError:
                self._without_store()
                return
            if self._closing.wait(BEAT_SECONDS):
                self._say_goodbye()
                return

    def _watch_store(self) -> None:
        """See that the store answers: a question to a frozen keeper has no end of its own."""
        ticked = since = time.monotonic()
        while not self._closing.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - ticked > _SILENT_BEATS * BEAT_SECONDS:
                since = now  # this process itself had stopped
            ticked = now
            silent_seconds = now - max(since, self._looked)
            if silent_seconds > self._limit_seconds and self.lost is None:
                self._bear(self._error(_KEEPER, f"has been silent for {silent_seconds:.0f} seconds"))
                return

    def _without_store(self) -> None:
        keeper = self._signs[_KEEPER]
        ended = keeper is not None and keeper.left
        if self._kept_by_first and self.rank != _KEEPER and not ended and not self._closing.is_set():
            self._bear(self._error(_KEEPER, "does not answer"))

    def _say_goodbye(self) -> None:
        try:
            self._tell()
        except StoreGoneError:
            return  # nobody is left to hear it

    def _tell(self) -> None:
        self._beat += 1
        if self._asks_to_stop or any(sign is not None and sign.asks_to_stop for sign in self._signs):
            with self._boundary:
                if self._stop_at is None:
                    self._stop_at = self._steps_done + 1
        mine = Sign(
            beat=self._beat,
            host=self._host,
            pid=os.getpid(),
            step=PROGRESS.step,
            number=PROGRESS.number,
            doing=PROGRESS.doing,
            left=self._left,
            asks_to_stop=self._asks_to_stop,
            stop_at=self._stop_at,
        )
        self._store.put(_key(self.rank), pickle.dumps(mine))

    def _listen(self) -> None:
        found = self._store.read([_key(rank) for rank in range(len(self.names))])
        now = time.monotonic()
        paused = now - self._looked > _SILENT_BEATS * BEAT_SECONDS
        self._looked = now
        for rank, data in enumerate(found):
            sign = None if data is None else pickle.loads(data)
            before, self._signs[rank] = self._signs[rank], sign
            # After a pause of its own, in which it heard nothing, this process gives the others time again.
            if paused or (sign is not None and (before is None or sign.beat != before.beat)):
                self._heard[rank] = now
        if self.lost is None and not self._closing.is_set() and (problem := self._problem()) is not None:
            self._bear(problem)

    def _problem(self) -> StratagemError | None:
        """Why this process can't go on, if it can't."""
        for rank in self._others():
            if self._dead(rank):
                return self._error(rank, "died")
            silent_seconds = self._silent_seconds(rank)
            begun = self._signs[rank] is not None
            if silent_seconds > (self._limit_seconds if begun else max(self._limit_seconds, _BEGIN_SECONDS)):
                return self._error(rank, f"has been silent for {silent_seconds:.0f} seconds")
        return self._stalled()

    def _dead(self, rank: int) -> bool:
        sign = self._signs[rank]
        if sign is None or not sign.died:
            return False
        # It may have said goodbye since.
        sign = self.ask(rank)
        return sign is not None and not sign.left

    def _error(self, rank: int, how: str) -> StratagemError:
        sign = self._signs[rank]
        ago_seconds = time.monotonic() - self._heard[rank]
        last = None if sign is None else (sign.host, sign.pid, ago_seconds, sign.step, sign.doing)
        return _lost.lost(self.names[rank], how, last, self.names[self.rank], PROGRESS.step, PROGRESS.doing)

    def _bear(self, error: StratagemError) -> None:
        """See that the program ends: by the error that it raises where it waits, or else at once."""
        self.lost = error
        if not self.ends_program:
            return
        if self._said.wait(_END_SECONDS) or self._closing.is_set():
            return
        sys.stderr.write(f"\nstratagem: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
        _lost.exit_now()


def _key(rank: int) -> str:
    return f"pulse/{rank}"
