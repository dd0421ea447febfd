# SPDX-License-Identifier: Apache-2.0
"""The processes of a pool, from one start to one end."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TextIO

from stratagem.launch import _failure, _pickle
from stratagem.launch._job import POLL_SECONDS, Job
from stratagem.launch._messages import SHOW_STACKS, Answer, answer_path, request_path
from stratagem.launch._plan import Plan

_NOTICE_SECONDS = 2.0  # after a first failure, for the others to say how it looks to them
_LEAVE_SECONDS = 5.0
_STACKS_SECONDS = 0.5
_DEATH_SECONDS = 2.0


class Crew:
    """Processes that wait for requests, each with a connection of its own.

    Args:
        plan: What to start; each command line gets the number of a descriptor added.
        environ: The environment that the processes inherit.
    """

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        pairs = [socket.socketpair() for _ in plan.processes]
        theirs = [pair[1].fileno() for pair in pairs]
        processes = tuple(
            dataclasses.replace(process, argv=(*process.argv, str(fd)))
            for process, fd in zip(plan.processes, theirs, strict=True)
        )
        self._connections = [Connection(ours.detach()) for ours, _ in pairs]
        try:
            self._job = Job(
                dataclasses.replace(plan, processes=processes),
                environ=environ,
                writers=(_writer(lambda: sys.stdout), _writer(lambda: sys.stderr)),
                same_terminal=True,
                pass_fds=[(fd,) for fd in theirs],
            )
        except BaseException:
            self._hang_up()
            raise
        finally:
            for _, other in pairs:
                other.close()
        self._number = 0
        self._closing = threading.Event()
        self._pump = threading.Thread(target=self._pass_output_on, name="stratagem-output", daemon=True)
        self._pump.start()

    @property
    def alive(self) -> bool:
        """Whether all processes run."""
        return all(child.poll() is None for child in self._job.children)

    def run(self, request: bytes, timeout_seconds: float | None) -> list[Answer]:
        """Send a request to all processes and wait for what becomes of it in each; the answers by rank."""
        self._number += 1
        path = request_path(self._job.directory, self._number)
        path.write_bytes(request)
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has ended, which the wait below finds
                connection.send_bytes(b"%d" % self._number)
        answers = self._collect(timeout_seconds)
        path.unlink()
        return [answers[rank] for rank in range(len(self._connections))]

    def close(self, *, kindly: bool) -> None:
        """End the processes; `kindly` lets them leave by themselves."""
        self._hang_up()
        self._closing.set()
        self._pump.join()
        if kindly:
            self._job.wait(_LEAVE_SECONDS)
        else:
            self._job.send(signal.SIGKILL)
        self._job.close()

    def _collect(self, timeout_seconds: float | None) -> dict[int, Answer]:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        answers: dict[int, Answer] = {}
        failed = False
        while waiting := [rank for rank in range(len(self._connections)) if rank not in answers]:
            if deadline is not None and time.monotonic() > deadline:
                why = "was still at work when another process had failed" if failed else ""
                return answers | self._stuck(waiting, why or f"did not come back within {timeout_seconds:g} seconds")
            wait([self._connections[rank] for rank in waiting], POLL_SECONDS)
            for rank in waiting:
                answer = self._look(rank)
                if answer is None:
                    continue
                answers[rank] = answer
                if answer.summary is not None and not failed:
                    failed = True
                    notice = time.monotonic() + _NOTICE_SECONDS
                    deadline = notice if deadline is None else min(deadline, notice)
        return answers

    def _look(self, rank: int) -> Answer | None:
        """What has become of the request in process `rank`, or None if that is not known yet."""
        ended = self._job.children[rank].poll() is not None
        try:
            if self._connections[rank].poll():
                self._connections[rank].recv_bytes()
                return self._read(rank)
        except (EOFError, OSError):
            ended = True
        return self._ended(rank) if ended else None

    def _read(self, rank: int) -> Answer:
        path: Path = answer_path(self._job.directory, self._number, rank)
        answer: Answer = _pickle.loads(path.read_bytes())
        path.unlink()
        return answer

    def _ended(self, rank: int) -> Answer:
        child, now = self._job.children[rank], time.monotonic()
        while child.poll() is None or not self._job.heard_all(rank):
            if time.monotonic() > now + _DEATH_SECONDS:
                break
            time.sleep(POLL_SECONDS / 10)
        how = "hung up" if child.returncode is None else _failure.describe(child.returncode)
        text = _failure.last_words(self._job.stderr_tail(rank))
        return Answer(summary=how, text=text, at_seconds=now, ended=True)

    def _stuck(self, ranks: list[int], why: str) -> dict[int, Answer]:
        now = time.monotonic()
        before = {rank: self._job.stderr_tail(rank) for rank in ranks}
        for rank in ranks:
            self._job.children[rank].send(SHOW_STACKS)
        time.sleep(_STACKS_SECONDS)

        def stacks(rank: int) -> str:
            return self._job.stderr_tail(rank).removeprefix(before[rank]).decode(errors="replace")

        return {
            rank: Answer(summary=why, text="it stood here:\n" + stacks(rank), at_seconds=now, ended=True)
            for rank in ranks
        }

    def _hang_up(self) -> None:
        for connection in self._connections:
            connection.close()

    def _pass_output_on(self) -> None:
        while not self._closing.is_set():
            self._job.pump(POLL_SECONDS)


def _writer(stream: Callable[[], TextIO | None]) -> Callable[[bytes], None]:
    """Writes to what `stream` answers at the time: notebooks and pytest exchange sys.stdout."""

    def write(data: bytes) -> None:
        place = stream()
        # A reader that has gone away must not stop the job, whose processes would then block on full pipes.
        with contextlib.suppress(OSError, ValueError):
            if place is not None:
                place.write(data.decode(errors="replace"))
                place.flush()

    return write
