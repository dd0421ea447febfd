# SPDX-License-Identifier: Apache-2.0
"""Signals that the launcher gets on behalf of its job."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

_LOOK_SECONDS = 0.05
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Collects signals inside a `with` block instead of dying of them."""

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        # Python lets only the main thread set handlers. On another thread a signal ends this process, and the
        # warden ends the job.
        if threading.current_thread() is threading.main_thread():
            for signum in _FORWARDED:
                if signal.getsignal(signum) != signal.SIG_IGN:  # nohup, or a background job of a shell
                    self._previous[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def taken(self) -> list[int]:
        """The signals that came since the last call."""
        taken, self._pending = self._pending, []
        return taken

    def wait(self, seconds: float) -> bool:
        """Wait, and say whether a signal came; it ends the waiting."""
        deadline = time.monotonic() + seconds
        while not self._pending and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return bool(self._pending)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self._pending.append(signum)
