# SPDX-License-Identifier: Apache-2.0
"""One process of a job, as its launcher sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from stratagem.errors import LaunchError
from stratagem.launch._plan import ProcessPlan

_GUARDED_EXEC = Path(__file__).with_name("_guarded_exec.py")


class Child:
    """A process that leads a session and process group of its own, so that all it starts can be ended with it."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.pid = process.pid
        self.returncode: int | None = None
        self._process = process

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """Where its stdout and stderr can be read."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return self._process.stdout, self._process.stderr

    def poll(self) -> int | None:
        """Its return code, or None while it runs."""
        if self.returncode is None and self._process.poll() is not None:
            self.returncode = self._process.returncode
            self._signal_group(signal.SIGKILL)  # what it started and did not end
        return self.returncode

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, as by SIGSTOP; False where the system does not say."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        # The state follows the name, which may hold anything, in parentheses.
        return stat.rpartition(b")")[2].split()[0] == b"T"

    def send(self, signum: int) -> None:
        """Send a signal to it, if it still runs; SIGKILL goes to what it has started as well."""
        if self.poll() is not None:
            return
        if signum == signal.SIGKILL:
            self._signal_group(signum)
        else:
            self._process.send_signal(signum)

    def _signal_group(self, signum: int) -> None:
        # Nothing is left of the group, or (macOS) only processes that have ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)


def start(
    plan: ProcessPlan,
    environ: Mapping[str, str],
    *,
    directory: str | None,
    stdin: int,
    pass_fds: tuple[int, ...] = (),
) -> Child:
    """Start a process of a job.

    Raises:
        LaunchError: the system could not start it.
    """
    argv = [*plan.argv]
    # The kernel watches the thread that starts a child, and only the main thread lives as long as its process;
    # children of another thread have the warden alone.
    if threading.current_thread() is threading.main_thread():
        argv = [sys.executable, "-I", "-S", str(_GUARDED_EXEC), str(os.getpid()), *argv]
    try:
        process = subprocess.Popen(
            argv,
            env={**environ, **dict(plan.variables)},
            cwd=directory,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as error:
        raise LaunchError(
            f"process {plan.rank} of the job could not be started: {error}",
            fix="see that its folder exists, and free memory or ask for fewer processes",
        ) from error
    return Child(plan.rank, process)
