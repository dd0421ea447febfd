# SPDX-License-Identifier: Apache-2.0
"""By what a process that does not write tells that the chief has written the file that it means."""

from __future__ import annotations

import os
import time
from typing import Any

__all__ = ["Elsewhere", "saved_key"]

_SURE_SECONDS = 2.0


def saved_key(path: Any) -> str:
    """The same on all processes for a file that they save together: its name, as their folders may differ."""
    return f"saved {os.path.basename(os.fspath(path))}" if isinstance(path, (str, os.PathLike)) else "saved an object"


class Elsewhere:
    """Whether the chief has saved to a path of another name, as programs do that give each worker a path of its own."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_sure(self, *, saved_this_name: bool, saving: bool, saved_as_often: bool) -> bool:
        """Asked again and again: for a while now the chief has saved as often, is not saving, and never this name.

        Args:
            saved_this_name: The chief has saved under this name.
            saving: It is writing now.
            saved_as_often: It has completed as many saves as this process has asked for.
        """
        if saved_this_name or saving or not saved_as_often:
            self._since = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since > _SURE_SECONDS
