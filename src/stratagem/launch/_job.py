# SPDX-License-Identifier: Apache-2.0
"""The processes of a job, from start to the last trace."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from stratagem._core import env
from stratagem.errors import LaunchError
from stratagem.launch._child import Child, start
from stratagem.launch._output import Source, Terminal
from stratagem.launch._plan import Plan

POLL_SECONDS = 0.05
_TERM_SECONDS = 1.0
_REAP_SECONDS = 5.0
_DRAIN_SECONDS = 1.0
_READ_BYTES = 1 << 16
_WARDEN = Path(__file__).with_name("_warden.py")

Write = Callable[[bytes], None]


class Job:
    """The running processes of a plan, their output and their folder. A context manager: nothing outlives it.

    Args:
        plan: What to start.
        environ: The environment that the processes inherit.
        writers: Take what they write to stdout and stderr, line by line.
        same_terminal: Whether the two end in the same place.
        stdin: What replica 0 reads; the others read nothing.
        pass_fds: By rank, descriptors that stay open in the process.
        log_dir: A folder where each process gets a file with all of its output, or None.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        environ: Mapping[str, str],
        writers: tuple[Write, Write],
        same_terminal: bool,
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[tuple[int, ...]] = (),
        log_dir: Path | None = None,
    ) -> None:
        self._log_dir = log_dir
        self._logs: list[BinaryIO] = []
        self.directory, self._warden = _start_warden()
        self.children: list[Child] = []
        self._errors: dict[int, Source] = {}
        self._sources: list[Source] = []
        self._selector = selectors.DefaultSelector()
        self._terminals = [Terminal()] * 2 if same_terminal else [Terminal(), Terminal()]
        self._writers = writers
        try:
            for process in plan.processes:
                child = start(
                    process,
                    {**environ, env.JOB_DIR: str(self.directory)},
                    directory=plan.directory,
                    stdin=stdin if process.rank == 0 else subprocess.DEVNULL,
                    pass_fds=pass_fds[process.rank] if pass_fds else (),
                )
                self._tell_warden(f"+{child.pid}")
                self.children.append(child)
                self._listen(child, plan)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def running(self) -> list[Child]:
        """The processes that have not ended."""
        return [child for child in self.children if child.returncode is None]

    def stderr_tail(self, rank: int) -> bytes:
        """The last that `rank` wrote to stderr."""
        return bytes(self._errors[rank].tail)

    def heard_all(self, rank: int) -> bool:
        """Whether `rank` has closed its stderr and all of it is known."""
        return self._errors[rank].ended

    def reap(self) -> list[Child]:
        """The processes that have ended since the last call."""
        ended = [child for child in self.running if child.poll() is not None]
        for child in ended:
            self._tell_warden(f"-{child.pid}")
        return ended

    def send(self, signum: int) -> None:
        """Send a signal to all processes that run."""
        for child in self.running:
            child.send(signum)

    def pump(self, timeout_seconds: float) -> bool:
        """Pass output on, waiting at most `timeout_seconds` for some; False if there was none."""
        if not self._selector.get_map():
            time.sleep(timeout_seconds)
            return False
        ready = self._selector.select(timeout_seconds)
        for key, _ in ready:
            data = os.read(key.fd, _READ_BYTES)
            if data:
                key.data.feed(data, time.monotonic())
            else:
                self._selector.unregister(key.fileobj)
                key.data.end()
        now = time.monotonic()
        for source in self._sources:
            source.flush_if_idle(now)
        return bool(ready)

    def wait(self, seconds: float) -> None:
        """Pass output on until all processes have ended, or for `seconds`."""
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            self.pump(POLL_SECONDS)
            self.reap()

    def close(self) -> None:
        """End what still runs, pass on the last output, and remove the folder."""
        try:
            for signum, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _REAP_SECONDS)):
                self.send(signum)
                self.wait(seconds)
            self._drain()
        finally:
            self._release()

    def _drain(self) -> None:
        # Limited, since a process that left its group may hold a pipe open.
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._selector.get_map() and time.monotonic() < deadline:
            self.pump(POLL_SECONDS)
        for source in self._sources:
            source.end()

    def _release(self) -> None:
        for child in self.children:
            for stream in child.streams:
                stream.close()
        for log in self._logs:
            log.close()
        self._selector.close()
        shutil.rmtree(self.directory, ignore_errors=True)  # the warden tries again
        assert self._warden.stdin is not None
        self._warden.stdin.close()  # which kills what could not be ended above
        self._warden.wait()

    def _listen(self, child: Child, plan: Plan) -> None:
        prefix = f"[{plan.noun} {child.rank}/{plan.count}] ".encode() if plan.count > 1 else b""
        log = self._log_of(child, plan)
        for stream, terminal, write in zip(child.streams, self._terminals, self._writers, strict=True):
            source = Source(terminal, prefix, write, log)
            self._sources.append(source)
            self._selector.register(stream, selectors.EVENT_READ, source)
        self._errors[child.rank] = self._sources[-1]

    def _log_of(self, child: Child, plan: Plan) -> Callable[[bytes], object] | None:
        if self._log_dir is None:
            return None
        # Of several attempts all stays.
        log = open(self._log_dir / f"{plan.noun}-{child.rank}.log", "ab", buffering=0)  # noqa: SIM115 - closed below
        self._logs.append(log)
        return log.write

    def _tell_warden(self, line: str) -> None:
        assert self._warden.stdin is not None
        self._warden.stdin.write(f"{line}\n".encode())


def _start_warden() -> tuple[Path, subprocess.Popen[bytes]]:
    """A new folder for a job, and the process that cleans up behind it."""
    directory = tempfile.mkdtemp(prefix="stratagem-job-")
    try:
        warden = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WARDEN), directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        os.rmdir(directory)
        raise LaunchError(f"no process could be started: {error}", fix="free memory or end other processes") from error
    return Path(directory), warden
