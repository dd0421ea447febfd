# SPDX-License-Identifier: Apache-2.0
"""Become another program that the kernel kills when the launcher dies: run as a script, without Stratagem.

The wish (PR_SET_PDEATHSIG) outlives exec. It is made here, in a fresh process, because the launcher may have
threads, and Python code between fork and exec can then deadlock.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Arguments: the launcher's process id, then the command line."""
    launcher, argv = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before it could be watched
            os._exit(128 + signal.SIGKILL)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main()
