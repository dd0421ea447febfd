# SPDX-License-Identifier: Apache-2.0
"""Whole programs for tests: started with a mark, and looked for by it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_SECONDS = 20.0
_MARK = "STRATAGEM_TEST_MARK"


@dataclass
class Program:
    """A program that a test started, with all that it starts itself.

    Attributes:
        process: The first process.
        mark: What the environment of all of them holds.
        temporary: Where they make temporary folders.
    """

    process: subprocess.Popen[str]
    temporary: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def finish(self, seconds: float = LIMIT_SECONDS) -> tuple[int, str, str]:
        """Wait for its end; the exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def wait_for(self, path: Path, seconds: float = LIMIT_SECONDS) -> None:
        """Wait until the program has made the file `path`."""
        wait_until(path.exists, f"{path} to be made", seconds=seconds)

    def survivors(self) -> list[int]:
        """The processes of this program that run."""
        return [pid for pid, environ in _environments() if self.mark.encode() in environ]

    def leaves_nothing(self, *, within_seconds: float) -> None:
        """Check that no process and no folder is left."""
        wait_until(lambda: not self.survivors(), "all processes to end", seconds=within_seconds)
        wait_until(
            lambda: not list(self.temporary.glob("stratagem-*")), "the job's folder to go", seconds=within_seconds
        )


@contextlib.contextmanager
def started(argv: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[Program]:
    """A program that runs `argv` in `folder`; whatever is left of it at the end is killed."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env={**_clean(), "KERAS_BACKEND": "torch", **(variables or {}), _MARK: mark, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets its background jobs ignore Ctrl-C, and the tests may be one.
        preexec_fn=_heed_ctrl_c,  # noqa: PLW1509 - no lock is taken in it
    )
    program = Program(process, temporary, mark)
    try:
        yield program
    finally:
        for pid in program.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def script(folder: Path, text: str, name: str = "script.py") -> str:
    """Write a script and return its name, for programs that start in `folder`."""
    (folder / name).write_text(textwrap.dedent(text))
    return name


def stratagem(*arguments: str) -> list[str]:
    """The command line of `stratagem ...`."""
    return [sys.executable, "-m", "stratagem", *arguments]


def wait_until(ready: object, what: str, *, seconds: float = LIMIT_SECONDS) -> None:
    """Poll `ready()` until it is true, and fail if that takes longer than `seconds`."""
    assert callable(ready)
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited {seconds} seconds for {what}"
        time.sleep(0.02)


def _clean() -> dict[str, str]:
    """This process's variables less those that say how to launch."""
    ours = ("STRATAGEM_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _environments() -> Iterator[tuple[int, bytes]]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            yield int(path.parent.name), path.read_bytes()
