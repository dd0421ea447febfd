# SPDX-License-Identifier: Apache-2.0
"""Outlives the launcher for a moment, to end what it left: run as a script, without Stratagem.

The launcher holds the other end of stdin and writes "+PID" for each process group it starts and "-PID" for each it
has seen end. However the launcher ends, stdin ends with it, and what has a plus and no minus is killed: the
processes that replicas have started as well, which no parent-death signal reaches. Then the job's folder goes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Argument: the job's folder."""
    groups: set[int] = set()
    # Ctrl-C and a kill of all that has the job's name are for the job: whoever cleans up goes last.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    for line in sys.stdin:
        pid = int(line[1:])
        if line.startswith("+"):
            groups.add(pid)
        else:
            groups.discard(pid)
    for pid in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)  # the launcher has removed it, if it came to that


if __name__ == "__main__":
    main()
