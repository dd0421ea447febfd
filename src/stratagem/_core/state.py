# SPDX-License-Identifier: Apache-2.0
"""Whether this process has joined a job, for the settings that can't change afterwards."""

from __future__ import annotations

__all__ = ["connected", "mark_connected", "mark_disconnected"]

_connected = False


def connected() -> bool:
    """Whether an engine of this process is connected."""
    return _connected


def mark_connected() -> None:
    """An engine calls this when it connects."""
    global _connected
    _connected = True


def mark_disconnected() -> None:
    """An engine calls this when it has disconnected."""
    global _connected
    _connected = False
