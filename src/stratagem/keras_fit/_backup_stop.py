# SPDX-License-Identifier: Apache-2.0
"""How a job that is told to stop finds one step at which all of its processes do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from stratagem.engines import select
from stratagem.engines._stop import Alone, StopAgreement

__all__ = ["EXIT_CODE", "OnSigterm", "StopAgreement", "stop_agreement"]

# What a shell says of a program that SIGTERM ended.
EXIT_CODE = 128 + signal.SIGTERM


def stop_agreement(num_processes: int) -> StopAgreement:
    """An agreement of the processes that save together."""
    return select.engine().stop_agreement() if num_processes > 1 else Alone()


class OnSigterm:
    """Calls a function at SIGTERM, instead of what was done before, until `release`.

    Python lets only the main thread do so; on another one nothing changes.

    Args:
        call: What to call in the signal handler.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._previous: Any = None
        self._holds = threading.current_thread() is threading.main_thread()
        self.came = False
        if self._holds:
            self._previous = signal.signal(signal.SIGTERM, self._take)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        # A second one changes nothing: a launcher and a platform may both have sent it.
        self.came = True
        self._call()

    def release(self, *, raises: bool) -> None:
        """Give the signal back.

        Args:
            raises: A signal that came takes its former effect now.
        """
        if not self._holds:
            return
        self._holds = False
        # None stands for a handler that was not set from Python.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
        if self.came and raises:
            signal.raise_signal(signal.SIGTERM)
