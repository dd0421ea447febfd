# SPDX-License-Identifier: Apache-2.0
"""Run a plan in the foreground: this process stands for the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from stratagem.launch import _failure
from stratagem.launch._child import Child
from stratagem.launch._job import POLL_SECONDS, Job
from stratagem.launch._plan import Plan
from stratagem.launch._signals import Signals

# After a first failure the others may notice it and say so, then they are asked to end, then they are ended.
_NOTICE_SECONDS = 2.0
_END_SECONDS = 3.0
# After Ctrl-C or SIGTERM a program may save its work.
_SAVE_SECONDS = 30.0


def supervise(plan: Plan, environ: Mapping[str, str]) -> int:
    """Run the processes of `plan` to their end and return the job's exit code.

    The first process that fails decides: the others are stopped, and its exit code (128 + n for signal n) is the
    job's. SIGINT, SIGTERM and SIGHUP reach all processes; a second one ends them at once.

    Args:
        plan: What to run.
        environ: The environment that the processes inherit.
    """
    out, err = _Descriptor(1), _Descriptor(2)
    with Signals() as signals:
        with Job(
            plan,
            environ=environ,
            writers=(out.write, err.write),
            same_terminal=_same_file(1, 2),
            stdin=_stdin(),
        ) as job:
            ending = _Ending(job)
            while job.running:
                job.pump(POLL_SECONDS)
                ending.ended(job.reap())
                for signum in signals.taken():
                    ending.signalled(signum)
                if (out.broken or err.broken) and not ending.by_signal:
                    ending.signalled(signal.SIGTERM)
                ending.go_on()
        if ending.first is None:
            return 0
        if not ending.by_signal:
            err.write(_report(job, ending.first, plan).encode())
    if out.broken or err.broken:
        return _failure.exit_code(-signal.SIGPIPE)
    assert ending.first.returncode is not None
    return _failure.exit_code(ending.first.returncode)


class _Ending:
    """What is done, and when, once a process has failed or a signal has come."""

    def __init__(self, job: Job) -> None:
        self.first: Child | None = None
        self.by_signal = False
        self._job = job
        self._schedule: list[tuple[float, int]] = []

    def ended(self, children: list[Child]) -> None:
        failed = [child for child in children if child.returncode]
        if not failed or self.first is not None:
            return
        # Of several that ended between two looks, one that was killed did not follow another.
        self.first = min(failed, key=lambda child: child.returncode or 0)
        if not self.by_signal:
            now = time.monotonic()
            self._schedule = [
                (now + _NOTICE_SECONDS, signal.SIGTERM),
                (now + _NOTICE_SECONDS + _END_SECONDS, signal.SIGKILL),
            ]

    def signalled(self, signum: int) -> None:
        again, self.by_signal = self.by_signal, True
        if again:
            self._job.send(signal.SIGKILL)
        else:
            self._job.send(signum)
            self._schedule = [(time.monotonic() + _SAVE_SECONDS, signal.SIGKILL)]

    def go_on(self) -> None:
        """Send what is due."""
        while self._schedule and self._schedule[0][0] <= time.monotonic():
            self._job.send(self._schedule.pop(0)[1])


class _Descriptor:
    """Writes to one of this process's own descriptors, for as long as someone reads it."""

    def __init__(self, fd: int) -> None:
        self.broken = False
        self._fd = fd

    def write(self, data: bytes) -> None:
        try:
            while data and not self.broken:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            self.broken = True


def _report(job: Job, first: Child, plan: Plan) -> str:
    assert first.returncode is not None
    count = len(plan.processes)
    how = _failure.describe(first.returncode)
    if count == 1:  # its output has stood alone, so there is nothing to find again
        return f"\nstratagem: the process {how}\n"
    words = _failure.last_words(job.stderr_tail(first.rank))
    others = f"the other {plan.noun} was" if count == 2 else f"the other {_plural(plan.noun)} were"
    last = f" The last it said:\n{words}" if words else ""
    return f"\nstratagem: {plan.noun} {first.rank}/{count} failed first: it {how}; {others} stopped.{last}\n"


def _plural(noun: str) -> str:
    return noun + ("es" if noun.endswith("s") else "s")


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:  # one of them is closed
        return False


def _stdin() -> int:
    # A process in a session of its own can't read this one's terminal.
    if sys.stdin is None or sys.stdin.isatty():
        return subprocess.DEVNULL
    return 0
