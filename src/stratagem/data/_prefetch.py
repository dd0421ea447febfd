# SPDX-License-Identifier: Apache-2.0
"""Reading ahead in a thread of its own, so that a step does not wait for what was read while the last one ran."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Ahead"]

_LOOK_SECONDS = 0.1
_END = object()


def _nothing() -> None:
    """Nobody looks."""


class Ahead(Iterator[Any]):
    """`items`, of which up to `depth` are read before they are asked for.

    An exception of theirs is raised here in its place. The thread ends when all is read, and soon after this object is
    dropped or closed.

    Args:
        items: Read in the thread alone.
        depth: The most that wait.
        look: Called about ten times a second by whoever waits for an item; may raise, when waiting has become hopeless.
        stop: Is set when this object is dropped or closed, for items that may have to wait themselves.

    >>> list(Ahead(iter([1, 2, 3]), depth=2))
    [1, 2, 3]
    """

    def __init__(
        self,
        items: Iterator[Any],
        depth: int,
        look: Callable[[], None] = _nothing,
        stop: threading.Event | None = None,
    ) -> None:
        self._look = look
        # Two queues of C, and not one with a limit, which is of Python and takes several times as long.
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._stop = stop or threading.Event()
        self._ended = False
        self._thread = threading.Thread(
            target=_read, args=(items, self._waiting, self._room, self._stop), name="stratagem-prefetch", daemon=True
        )
        # The thread holds no reference to this object, so it can be dropped.
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        while True:
            try:
                item, error = self._waiting.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                self._look()
        self._room.put(None)
        if error is not None:
            self._ended = True
            raise error
        if item is _END:
            self._ended = True
            raise StopIteration
        return item

    def close(self) -> None:
        """Read no further, and see the thread end."""
        self._stop.set()
        self._thread.join()


def _read(
    items: Iterator[Any], waiting: queue.SimpleQueue[Any], room: queue.SimpleQueue[None], stop: threading.Event
) -> None:
    while not stop.is_set():
        try:
            said: tuple[Any, BaseException | None] = (next(items, _END), None)
        except Exception as error:  # noqa: BLE001 - raised in the thread that asks
            said = (None, error)
        while not stop.is_set():
            try:
                room.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                continue
        waiting.put(said)
        if said[0] is _END or said[1] is not None:
            return
