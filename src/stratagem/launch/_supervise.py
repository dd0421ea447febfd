# SPDX-License-Identifier: Apache-2.0
"""Run a plan in the foreground: this process stands for the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stratagem._core import env
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
_RESTART_SECONDS = 1.0
_TOLD_TO_STOP = 128 + signal.SIGTERM  # as `stratagem.BackupAndRestore` ends


def supervise(plan: Plan, environ: Mapping[str, str], *, max_restarts: int = 0, log_dir: Path | None = None) -> int:
    """Run the processes of `plan` to their end and return the job's exit code.

    The first process that fails decides: the others are stopped, and its exit code (128 + n for signal n) is the
    job's. SIGINT, SIGTERM and SIGHUP reach all processes; a second one ends them at once.

    Args:
        plan: What to run.
        environ: The environment that the processes inherit.
        max_restarts: How many times to begin again after a process has failed.
        log_dir: A folder where each process gets a file with all of its output, or None.
    """
    with Signals() as signals:
        for restarts in range(max_restarts, -1, -1):
            code, again = _attempt(plan, environ, signals, log_dir, restarts)
            # What made a process fail may need a moment to pass, a port that is still taken above all.
            if not again or not restarts or signals.wait(_RESTART_SECONDS):
                return code
    raise AssertionError("the last attempt returns")


def _attempt(
    plan: Plan, environ: Mapping[str, str], signals: Signals, log_dir: Path | None, restarts: int
) -> tuple[int, bool]:
    """Run the job once: its exit code, and whether it may begin again."""
    out, err = _Descriptor(1), _Descriptor(2)
    with Job(
        plan,
        environ=environ,
        writers=(out.write, err.write),
        same_terminal=_same_file(1, 2),
        stdin=_stdin(),
        log_dir=log_dir,
    ) as job:
        ending = _Ending(job)
        frozen = _Frozen(job, plan, environ, err.write)
        while job.running:
            job.pump(POLL_SECONDS)
            ending.ended(job.reap())
            for signum in signals.taken():
                ending.signalled(signum)
            if (out.broken or err.broken) and not ending.by_signal:
                ending.signalled(signal.SIGTERM)
            ending.go_on()
            frozen.look()
    if ending.first is None:
        return 0, False
    if not ending.by_signal:
        err.write(_report(job, ending.first, plan, restarts).encode())
    if out.broken or err.broken:
        return _failure.exit_code(-signal.SIGPIPE), False
    assert ending.first.returncode is not None
    return _failure.exit_code(ending.first.returncode), not ending.by_signal


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


class _Frozen:
    """Ends a process that is stopped, as by SIGSTOP, when all others have ended: nobody else is left to miss it."""

    def __init__(self, job: Job, plan: Plan, environ: Mapping[str, str], say: Callable[[bytes], object]) -> None:
        self._job = job
        self._plan = plan
        self._say = say
        self._limit_seconds = env.failure_timeout_seconds({**environ, **dict(plan.processes[0].variables)})
        self._since: float | None = None

    def look(self) -> None:
        """End what has been stopped for as long as a failure may go unnoticed."""
        left = self._job.running
        if len(self._job.children) == 1 or not left or not all(child.is_stopped for child in left):
            self._since = None
            return
        if len(left) == len(self._job.children):
            return  # all were stopped together, which someone did on purpose
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > self._limit_seconds:
            for child in left:
                who = f"{self._plan.noun} {child.rank}/{self._plan.count} (pid {child.pid})"
                how = f"has been stopped for {self._limit_seconds:g} seconds, while the others have ended; it is ended"
                self._say(f"\nstratagem: {who} {how}\n".encode())
                child.send(signal.SIGKILL)
            self._since = None


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


def _report(job: Job, first: Child, plan: Plan, restarts: int) -> str:
    assert first.returncode is not None
    here = len(plan.processes)
    how = _failure.describe(first.returncode)
    again = f"stratagem: the job begins again, {restarts} restarts are left\n" if restarts else ""
    if all(child.returncode == _TOLD_TO_STOP for child in job.children):
        return (
            f"\nstratagem: the job was told to stop, and has saved where it stood (exit code {_TOLD_TO_STOP})\n{again}"
        )
    if here == 1:  # its output has stood alone, so there is nothing to find again
        return f"\nstratagem: the {'process' if plan.count == 1 else plan.noun} {how}\n{again}"
    words = _failure.last_words(job.stderr_tail(first.rank))
    others = f"the other {plan.noun} was" if here == 2 else f"the other {_plural(plan.noun)} were"
    last = f" The last it said:\n{words}" if words else ""
    who = f"{plan.noun} {first.rank}/{plan.count}"
    return f"\nstratagem: {who} failed first: it {how}; {others} stopped.{last}\n{again}"


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
