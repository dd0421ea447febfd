# SPDX-License-Identifier: Apache-2.0
"""A bound on the steps that have been sent to the devices and are not done yet."""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any

import jax

_ON_CPU = 8
_ON_ACCELERATORS = 32


class InFlight:
    """Lets the Python loop run ahead of the devices, but not by more than a few steps.

    On CPU the steps' collectives wait for one another in a pool of threads: with a whole epoch queued they starve, and
    XLA ends the process.

    Args:
        on_cpu: Whether the replicas compute on CPU devices.
    """

    def __init__(self, on_cpu: bool) -> None:
        self._limit = _ON_CPU if on_cpu else _ON_ACCELERATORS
        self._waiting: deque[Any] = deque()
        self._oldest: tuple[float, Any] | None = None
        _ALL.add(self)

    def note(self, result: Any) -> None:
        """A step was sent whose results, a structure of arrays that nobody donates, are `result`."""
        leaves = jax.tree.leaves(result)
        if not leaves:
            return
        self._waiting.append(leaves[0])
        if len(self._waiting) > self._limit:
            self._waiting.popleft().block_until_ready()

    def waiting_seconds(self) -> float:
        """How long the devices have not come further than one step; asked from another thread, again and again."""
        now = time.monotonic()
        if self._oldest is not None and not self._oldest[1].is_ready():
            return now - self._oldest[0]
        self._oldest = next(((now, one) for one in tuple(self._waiting) if not one.is_ready()), None)
        return 0.0


_ALL: weakref.WeakSet[InFlight] = weakref.WeakSet()


def waiting_seconds() -> float:
    """The longest that any steps of this process have waited so far."""
    return max((one.waiting_seconds() for one in tuple(_ALL)), default=0.0)
