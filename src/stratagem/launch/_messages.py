# SPDX-License-Identifier: Apache-2.0
"""What a pool and its processes tell each other.

Requests and answers are files in the job's folder, and a connection only says that they are there, so that neither
side ever waits for the other to read something large.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHOW_STACKS = signal.SIGUSR1  # makes a process write where all its threads stand


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a request in one process.

    Attributes:
        result: What the function returned.
        summary: What went wrong, as one line after "replica 1/2", or None if nothing did.
        text: What else is known of it, such as a traceback.
        at_seconds: When, by the host's monotonic clock.
        ended: Whether the process can't take another request.
    """

    result: Any = None
    summary: str | None = None
    text: str = ""
    at_seconds: float
    ended: bool = False


def request_path(directory: Path, number: int) -> Path:
    """Where request `number` lies, for all ranks."""
    return directory / f"request-{number}.pickle"


def answer_path(directory: Path, number: int, rank: int) -> Path:
    """Where the answer of `rank` to request `number` lies."""
    return directory / f"answer-{number}-{rank}.pickle"
