# SPDX-License-Identifier: Apache-2.0
"""What one process reads and all get: items, their end, or what went wrong, in words that can be sent."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from stratagem.errors import ReplicaFailedError

__all__ = ["Said", "items_of", "said_of"]

_ITEM, _END = "item", "end"


class Said(NamedTuple):
    """What came of asking for the next item.

    Attributes:
        word: That there is one, that there is none any more, or the text of the error.
        item: The item.
        error: The error, in the process where it was raised.
    """

    word: str
    item: Any = None
    error: BaseException | None = None

    @classmethod
    def of_error(cls, error: BaseException) -> Said:
        """That there is no item, because of `error`."""
        return cls(f"{type(error).__name__}: {error}", None, error)

    def pickled(self) -> tuple[Said, bytes]:
        """What is said in the end, for it may be that the item can't be sent, and what other processes get of it."""
        try:
            return self, pickle.dumps(self._replace(error=None), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - raised again where the item is asked for
            return Said.of_error(error).pickled()


def said_of(items: Iterator[Any]) -> Iterator[Said]:
    """Each item, and then that there is none any more, or why."""
    try:
        for item in items:
            yield Said(_ITEM, item)
    except Exception as error:  # noqa: BLE001 - raised again where the item is asked for
        yield Said.of_error(error)
    else:
        yield Said(_END)


def items_of(said: Iterable[Said], source: int, what: str) -> Iterator[Any]:
    """The items again.

    Args:
        said: By the process of replica `source`.
        source: Names it in the error.
        what: Names an item in the error.

    Raises:
        ReplicaFailedError: an item could not be read there; in that process the error itself.
    """
    for word, item, error in said:
        if error is not None:
            raise error
        if word == _END:
            return
        if word != _ITEM:
            raise ReplicaFailedError(f"replica {source} could not read {what}: {word}")
        yield item
