# SPDX-License-Identifier: Apache-2.0
"""How far this process has come, for the errors of the others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROGRESS", "Progress"]


@dataclass
class Progress:
    """What a process did last.

    Attributes:
        step: The number of its training steps and calls of `strategy.run` so far.
        number: The number of its last collective.
        doing: That collective.
    """

    step: int = 0
    number: int = 0
    doing: str = "its start"


PROGRESS = Progress()
