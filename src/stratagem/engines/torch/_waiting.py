# SPDX-License-Identifier: Apache-2.0
"""Waiting for other processes: cheap when they are near, kind to the cores when they are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_SPINS = 200
_SHORTEST_NAP_SECONDS = 20e-6
_LONGEST_NAP_SECONDS = 1e-3
_NAPS_PART = 1 / 20  # of the time waited so far: nobody is told later than by that much
_CHECK_SECONDS = 0.1


def wait_until(
    ready: Callable[[], bool],
    *,
    timeout_seconds: float,
    on_stall: Callable[[], None],
    on_timeout: Callable[[float], Exception],
) -> None:
    """Return once `ready()` is true.

    Args:
        ready: Polled; must be cheap.
        timeout_seconds: After this long `on_timeout(seconds)` is raised.
        on_stall: Called about ten times a second while waiting; may raise, when waiting has become hopeless.
        on_timeout: Makes the error, which names whom this process waited for.
    """
    for _ in range(_SPINS):
        if ready():
            return
        # Gives the core to a replica that shares it; costs a microsecond where none does. time.sleep(0) would sleep for
        # as long as the kernel's timers are coarse: some 50 of them.
        os.sched_yield()
    start = check = now = time.monotonic()
    while not ready():
        nap(now - start)
        now = time.monotonic()
        if now - check > _CHECK_SECONDS:
            check = now
            on_stall()
        if now - start > timeout_seconds and not ready():
            raise on_timeout(timeout_seconds)


def nap(waited_seconds: float) -> None:
    """Sleep between two looks at something that has been waited for so long."""
    time.sleep(min(max(_NAPS_PART * waited_seconds, _SHORTEST_NAP_SECONDS), _LONGEST_NAP_SECONDS))
