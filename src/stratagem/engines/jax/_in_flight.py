# SPDX-License-Identifier: Apache-2.0
"""A bound on the steps that have been sent to the devices and are not done yet."""

from __future__ import annotations

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

    def note(self, result: Any) -> None:
        """A step was sent whose results, a structure of arrays that nobody donates, are `result`."""
        leaves = jax.tree.leaves(result)
        if not leaves:
            return
        self._waiting.append(leaves[0])
        if len(self._waiting) > self._limit:
            self._waiting.popleft().block_until_ready()
