# SPDX-License-Identifier: Apache-2.0
"""What each replica is doing, in one small file each, for the others' errors.

A store of torch.distributed would grow with everything that is written to it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from stratagem.engines import _lost

_NOTE_BYTES = 2048


@dataclass(frozen=True)
class Note:
    """What a replica wrote last.

    Attributes:
        host, pid: Its process; "" and 0 if it has not written yet.
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
        folder: One that all replicas see.
        rank: This replica.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._fd = os.open(self._path(rank), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._process = f"{socket.gethostname()}\t{os.getpid()}"

    def write(self, number: int, text: str, left: str = "") -> None:
        """Replace this replica's note."""
        line = f"{self._process}\t{left}\t{number:012}\t{text}".encode()
        # Of one length always, so that nothing of a longer one remains.
        os.pwrite(self._fd, line[:_NOTE_BYTES].ljust(_NOTE_BYTES), 0)

    def read(self, rank: int) -> Note:
        """A replica's note."""
        path = self._path(rank)
        fields = path.read_text(errors="replace").rstrip().split("\t", 4) if path.exists() else []
        if len(fields) < 5:
            return Note()
        host, pid, left, number, text = fields
        return Note(host, int(pid), left, int(number), text)

    def close(self) -> None:
        """No more notes."""
        os.close(self._fd)

    def _path(self, rank: int) -> Path:
        return self._folder / f"doing-{rank}"
