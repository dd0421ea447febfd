# SPDX-License-Identifier: Apache-2.0
"""Waiting in a test for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(ready: Callable[[], object], what: str, within_seconds: float = 5.0) -> None:
    """Return once `ready()`; fail with `what` where that takes too long."""
    deadline = time.monotonic() + within_seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited for this: {what}"
        time.sleep(0.005)
