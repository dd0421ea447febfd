# SPDX-License-Identifier: Apache-2.0
"""The doctors of all workers call each other at their tasks' ports, and hand on what they know.

Each calls each, so both directions of every pair are tried. A contact goes both ways, so what one knows comes to all as
long as some path connects them, whoever can't call whom.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from stratagem.doctor import _addresses
from stratagem.doctor._ports import how_it_failed
from stratagem.doctor._report import REACHED, Call, Report, Table

__all__ = ["Meeting"]

_PROTOCOL = "stratagem doctor 1"
_CONNECT_SECONDS = 2.0  # long enough for a lost packet to be sent again
_SILENCE_SECONDS = 2.0
_PERIOD_SECONDS = 0.2
_PERIOD_PER_TASK_SECONDS = 0.02  # in a large cluster each is called by many
_MAX_LINE_BYTES = 16 * 2**20


class Meeting:
    """Calls to all tasks and answers to theirs, in the background as long as the block lasts.

    Args:
        table: Where this worker's report is, and the others' come.
        listener: Listens at the own task's port; None where it can't.
    """

    def __init__(self, table: Table, listener: socket.socket | None) -> None:
        self._table = table
        self._listener = listener
        self._over = threading.Event()
        tasks = table.view().me.tasks
        self._period = max(_PERIOD_SECONDS, _PERIOD_PER_TASK_SECONDS * len(tasks))
        # Daemons, because a look-up of a name can't be broken off.
        self._threads = [
            threading.Thread(target=self._call_again_and_again, args=task, name=f"calls {task[0]}", daemon=True)
            for task in tasks
        ]
        if listener is not None:
            listener.settimeout(_PERIOD_SECONDS)
            self._threads.append(threading.Thread(target=self._listen, args=(listener,), name="answers", daemon=True))

    def __enter__(self) -> Meeting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._listener is not None:
            self._listener.close()

    def _call_again_and_again(self, task: str, address: str) -> None:
        while not self._over.is_set():
            self._table.note_call(task, self._call(address))
            self._over.wait(self._period)

    def _call(self, address: str) -> Call:
        host, port = _addresses.split(address)
        try:
            connection = socket.create_connection((host, port or 0), timeout=_CONNECT_SECONDS)
        except (OSError, UnicodeError) as error:
            return how_it_failed(error)
        try:
            with connection, _lines(connection) as (read, write):
                return self._talk(read, write)
        except (OSError, ValueError, TypeError, KeyError) as error:
            return Call(how="stranger", detail=str(error))

    def _talk(self, read: Any, write: Any) -> Call:
        asked = time.time()
        write({"protocol": _PROTOCOL, "nonce": self._table.view().me.nonce, "numbers": self._table.numbers()})
        answer = read()
        offset = answer["clock"] - (asked + time.time()) / 2
        self._take(answer)
        write({"reports": [report.to_json() for report in self._table.newer_than(answer["numbers"])]})
        # Read, so that closing does not throw away what the other has yet to read.
        self._table.note_knowledge(answer["nonce"], read()["numbers"])
        return Call(how=REACHED, answered_by=answer["nonce"], clock_offset_seconds=offset)

    def _listen(self, listener: socket.socket) -> None:
        while not self._over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:  # nobody came in this period, or the block is over
                continue
            threading.Thread(target=self._answer, args=(connection,), name="answer", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        # Anything may call at an open port; who does not speak as we do is left alone.
        with connection, contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            with _lines(connection) as (read, write):
                asked = read()
                if asked["protocol"] != _PROTOCOL:
                    return
                me, newer = self._table.view().me, self._table.newer_than(asked["numbers"])
                write(
                    {
                        "clock": time.time(),
                        "nonce": me.nonce,
                        "numbers": self._table.numbers(),
                        "reports": [report.to_json() for report in newer],
                    }
                )
                self._take(read())
                self._table.note_knowledge(asked["nonce"], asked["numbers"])
                write({"numbers": self._table.numbers()})

    def _take(self, said: dict[str, Any]) -> None:
        sent: Sequence[Any] = said["reports"]
        self._table.merge([Report.of_json(report) for report in sent])


@contextlib.contextmanager
def _lines(connection: socket.socket) -> Iterator[tuple[Any, Any]]:
    """Two functions that read and write one JSON object, in a line of its own."""
    connection.settimeout(_SILENCE_SECONDS)
    with connection.makefile("rb") as incoming:

        def read() -> dict[str, Any]:
            line = incoming.readline(_MAX_LINE_BYTES)
            if not line.endswith(b"\n"):
                raise ValueError(
                    "the connection was closed" if not line else f"an answer of another kind: {line!r:.60}"
                )
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError(f"an answer of another kind: {line!r:.60}")
            return found

        def write(said: dict[str, Any]) -> None:
            connection.sendall(json.dumps(said).encode() + b"\n")

        yield read, write
