# SPDX-License-Identifier: Apache-2.0
"""The parts of the doctor that load a framework run in processes of their own, so that none of them can hang it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from stratagem._core import env

__all__ = ["Probe"]

_POLL_SECONDS = 0.05
_MAX_PROBLEM = 300  # letters of an error
_ERROR = re.compile(r"[\w.]+(Error|Exception): ")  # the line that ends a traceback, but for a fix


class Probe:
    """A process that runs `python -m MODULE` and answers with one JSON object; the end of the block ends it.

    Args:
        module: The module's dotted name.
        request: What it reads from its stdin, as JSON.
        variables: Variables of its environment, besides this process's.
    """

    def __init__(self, module: str, request: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        # A file, not a pipe: whatever a framework has to say, the process never waits for a reader.
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
            env={**env.inherited(), **variables},
            start_new_session=True,  # Ctrl-C is the doctor's, which then ends it
        )
        stdin = self._process.stdin
        assert stdin is not None, "a pipe, as asked for"
        with contextlib.suppress(BrokenPipeError):  # it has ended already; `answer` says why
            stdin.write(json.dumps(request).encode())
        with contextlib.suppress(BrokenPipeError):  # what was kept back is written now
            stdin.close()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._err.close()

    def answer(self, seconds: float, give_up: Callable[[], str | None] = lambda: None) -> dict[str, Any]:
        """What it found.

        Args:
            seconds: The longest to wait.
            give_up: Says why there is nothing to wait for any more, as soon as there is not.

        Returns:
            Its object, or {"problem": why there is none}.
        """
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            reason = f"no answer within {seconds:g} seconds" if time.monotonic() > deadline else give_up()
            if reason is not None:
                return {"problem": reason}
            time.sleep(_POLL_SECONDS)
        self._out.seek(0)
        lines = self._out.read().decode(errors="replace").splitlines()
        if self._process.returncode == 0 and lines:
            return json.loads(lines[-1])
        self._err.seek(0)
        return {"problem": _problem(self._err.read().decode(errors="replace"), self._process.returncode)}


def _problem(err: str, code: int) -> str:
    """What a traceback ends with, or the last line, or how the process ended."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    if errors:
        return errors[-1][:_MAX_PROBLEM]
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return lines[-1][:_MAX_PROBLEM] if lines else f"it ended with exit code {code}"
