# SPDX-License-Identifier: Apache-2.0
"""What each replica is doing, for the others' errors, as the pulse tells it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from stratagem.engines import _lost
from stratagem.engines._progress import PROGRESS
from stratagem.engines._pulse import Pulse


@dataclass(frozen=True)
class Note:
    """What a replica said last.

    Attributes:
        host, pid: Its process; "" and 0 if it has said nothing yet.
        left: Whether its program has "ended" or "failed"; "" if neither.
        number: The number of its last collective.
        text: That collective.
    """

    host: str = ""
    pid: int = 0
    left: str = ""
    number: int = 0
    text: str = ""

    @property
    def died(self) -> bool:
        """Whether its process has ended without a word; of another host's processes nothing is known."""
        return bool(self.pid) and not self.left and self.host == socket.gethostname() and not _lost.alive(self.pid)


class Notes:
    """One replica's access to the notes of all.

    Args:
        pulse: Of its process.
    """

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse

    def write(self, number: int, text: str) -> None:
        """Replace this replica's note; the others hear of it with the next beat."""
        PROGRESS.number, PROGRESS.doing = number, text

    def read(self, rank: int) -> Note:
        """A replica's note."""
        sign = self.pulse.ask(rank)
        return Note() if sign is None else Note(sign.host, sign.pid, sign.left, sign.number, sign.doing)
