# SPDX-License-Identifier: Apache-2.0
"""The output of several processes on one terminal: prefixed, in whole lines, with progress bars that still move."""

from __future__ import annotations

import re
from collections.abc import Callable

_END_OF_SEGMENT = re.compile(rb"\r\n|\r|\n")
_CURSOR_ONLY = b"\b\r"
_FLUSH_AFTER_SECONDS = 0.1
_MAX_PENDING_BYTES = 1 << 16
_TAIL_BYTES = 1 << 16


class Terminal:
    """One place that several sources write to. It knows whose unfinished line the cursor stands in."""

    def __init__(self) -> None:
        self._owner: Source | None = None
        self._at_start = True

    def write(self, source: Source, segment: bytes) -> None:
        """Write text that is a whole line, ends in a carriage return, or is the beginning of a line."""
        others_line = self._owner is not None and self._owner is not source
        if others_line or self._at_start or self._owner is None:
            if not segment.strip(_CURSOR_ONLY):
                # Erases a line of its own that is no longer the last one; there is nothing to erase.
                if not others_line:
                    source.write(segment)
                return
            segment = (b"\n" if others_line else b"") + source.prefix + segment
        source.write(segment)
        self._owner = None if segment.endswith(b"\n") else source
        self._at_start = segment.endswith(b"\r")


class Source:
    """One stream of one process.

    Args:
        terminal: Where it goes, together with others.
        prefix: What each line starts with.
        write: Puts bytes on the terminal.
        log: Keeps them as well.
    """

    def __init__(
        self,
        terminal: Terminal,
        prefix: bytes,
        write: Callable[[bytes], None],
        log: Callable[[bytes], object] | None = None,
    ) -> None:
        self.prefix = prefix
        self.write = write
        self.tail = bytearray()
        self.ended = False
        self._terminal = terminal
        self._log = log
        self._pending = bytearray()
        self._last_fed_seconds = 0.0

    def feed(self, data: bytes, now_seconds: float) -> None:
        """Take what the process has written."""
        if self._log is not None:
            self._log(data)
        self.tail += data
        del self.tail[:-_TAIL_BYTES]
        self._pending += data
        self._last_fed_seconds = now_seconds
        end = 0
        for match in _END_OF_SEGMENT.finditer(bytes(self._pending)):
            self._terminal.write(self, bytes(self._pending[end : match.end()]))
            end = match.end()
        del self._pending[:end]
        if len(self._pending) > _MAX_PENDING_BYTES:
            self.flush()

    def flush_if_idle(self, now_seconds: float) -> None:
        """Show the beginning of a line that its process does not go on with: a prompt, or a progress bar.

        Not at once, since `print("a", "b")` arrives as four pieces, between which others may write.
        """
        if self._pending and now_seconds - self._last_fed_seconds > _FLUSH_AFTER_SECONDS:
            self.flush()

    def end(self) -> None:
        """Its process has closed it."""
        self.ended = True
        self.flush()

    def flush(self) -> None:
        """Write what there is, less a character that may yet arrive whole."""
        size = len(self._pending) if self.ended else _whole_characters(self._pending)
        if size:
            self._terminal.write(self, bytes(self._pending[:size]))
            del self._pending[:size]


def _whole_characters(data: bytearray) -> int:
    """The length of `data` without a UTF-8 character at its end that lacks bytes."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < length else len(data)
    return len(data)
