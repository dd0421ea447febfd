# SPDX-License-Identifier: Apache-2.0
"""A replica's process that runs functions it is sent: `python -m stratagem.launch._worker DESCRIPTOR`.

See `_messages` for what goes to and fro.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stratagem._core import env
from stratagem.errors import ArgumentTypeError
from stratagem.launch import _pickle
from stratagem.launch._messages import SHOW_STACKS, Answer, answer_path, request_path


def main() -> None:
    """Answer requests until the other side closes the connection."""
    faulthandler.register(SHOW_STACKS, all_threads=True)
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    job = env.job()
    assert job is not None, "a launcher started this process"
    while True:
        try:
            number = int(connection.recv_bytes())
        except EOFError:
            return
        answer = _answer(request_path(job.directory, number))
        sys.stdout.flush()
        sys.stderr.flush()
        answer_path(job.directory, number, job.rank).write_bytes(answer)
        connection.send_bytes(b"%d" % number)


def _answer(path: Path) -> bytes:
    """What came of a request, pickled."""
    try:
        paths, call = _pickle.loads(path.read_bytes())
        sys.path[:] = paths
        fn, args = _pickle.loads(call)
        return _pickled(fn, fn(*args))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is raised again on the other side
        at_seconds = time.monotonic()
        # The frame of this function says nothing to whoever sent theirs.
        trace = error.__traceback__ and error.__traceback__.tb_next
        summary = traceback.format_exception_only(error)[0].strip()
        text = "".join(traceback.format_exception(error.with_traceback(trace)))
        return _pickle.dumps(Answer(result=None, summary=summary, text=text, at_seconds=at_seconds))


def _pickled(fn: Any, result: Any) -> bytes:
    try:
        return _pickle.dumps(Answer(result=result, at_seconds=time.monotonic()))
    except Exception as error:
        raise ArgumentTypeError(
            f"{getattr(fn, '__name__', fn)} returned a {type(result).__name__} that can't be pickled: {error}",
            fix="return numbers, strings, numpy arrays, or containers of them",
        ) from error


if __name__ == "__main__":
    main()
