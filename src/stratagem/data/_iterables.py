# SPDX-License-Identifier: Apache-2.0
"""Sources of whole global batches: iterables, functions that return them, and what has an index."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from stratagem._core import nest
from stratagem.data._source import Source
from stratagem.errors import ArgumentError, ArgumentTypeError

__all__ = ["IndexedSource", "IterableSource", "checked"]


class IterableSource(Source):
    """Global batches from an iterable, or from a function that returns a new one for each pass.

    Args:
        given: The iterable or function. An iterator can be passed over once.
    """

    def __init__(self, given: Iterable[Any] | Callable[..., Any]) -> None:
        self._given = given
        self._once = isinstance(given, Iterator)
        self._begun = False
        self.kind = f"{type(given).__module__}.{type(given).__qualname__}".removeprefix("builtins.")

    @property
    def num_batches(self) -> int | None:
        return len(self._given) if isinstance(self._given, Sized) else None

    def batches(self, start: int) -> Iterator[Any]:
        if self._once and self._begun:
            raise ArgumentError(
                f"a {self.kind} can be passed over once, and has been",
                fix="distribute the function that makes it, or an object whose __iter__ begins anew",
            )
        self._begun = True
        made = self._given() if not isinstance(self._given, Iterable) else self._given
        return (checked(batch, self.kind) for batch in itertools.islice(iter(made), start, None))


class IndexedSource(Source):
    """Global batches by index, each of which one process reads whole.

    Args:
        kind: What it is, for people.
        given: Its element i is global batch i.
        count: How many there are; None if there is no end.
    """

    resumable = True

    def __init__(self, kind: str, given: Any, count: int | None) -> None:
        self.kind = kind
        self._given = given
        self._count = count

    @property
    def num_batches(self) -> int | None:
        return self._count

    def batches(self, start: int) -> Iterator[Any]:
        indices = itertools.count(start) if self._count is None else range(start, self._count)
        return (checked(self._given[index], self.kind) for index in indices)


def checked(batch: Any, kind: str) -> Any:
    """`batch`, an element of a data set.

    Raises:
        ArgumentTypeError: nothing in it has rows.
    """
    if any(getattr(leaf, "ndim", 0) for leaf in nest.flatten(batch)):
        return batch
    raise ArgumentTypeError(
        f"an element of the {kind} has no array with rows in it: {nest.describe(batch)}",
        fix="let each element be a batch, with as many rows as the global batch has",
    )
