# SPDX-License-Identifier: Apache-2.0
"""Draws with a seed: for each row of the global batch what one device draws for it, whatever replica has the row.

A replica draws for the whole global batch, as one device does, and takes its rows of that. What a layer draws without a
seed is left to the engine, for which the replicas' streams differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from keras import ops
from keras.random import SeedGenerator

_THREAD = threading.local()


@dataclass(frozen=True)
class Rows:
    """Which rows of the global batch the replica has that is running.

    Attributes:
        start: The first of them; may be traced.
        rows: How many.
        global_rows: How many all replicas have.
    """

    start: Any
    rows: int
    global_rows: int

    def whole(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """The shape over the global batch of what has `shape` over these rows, or some for each of them."""
        if not shape or not self.rows or shape[0] % self.rows:
            return None
        return (shape[0] // self.rows * self.global_rows, *shape[1:])

    def own(self, drawn: Any, shape: Sequence[int]) -> Any:
        """These rows' part, of `shape`, of what was drawn for all."""
        start = shape[0] // self.rows * self.start
        return ops.slice(drawn, (start, *[0] * (len(shape) - 1)), tuple(shape))


RowsHere = Callable[[], Rows | None]


def is_for_all() -> bool:
    """Whether what is drawn now is that of one device, and not of this replica alone."""
    return getattr(_THREAD, "for_all", False)


def shaped(rows_here: RowsHere) -> Callable[..., Any]:
    """What stands in for a function of Keras's that draws numbers of a shape."""

    def draw(original: Callable[..., Any], shape: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        # Not twice: some of Keras's functions draw by others of them.
        rows = None if is_for_all() or not _is_set(kwargs.get("seed")) else rows_here()
        if rows is None or any(
            _has_rows(value) for name, value in (*enumerate(args), *kwargs.items()) if name != "seed"
        ):
            return original(shape, *args, **kwargs)
        if not shape or (shape[0] == 1 and rows.rows != 1):
            with _for_all():
                return original(shape, *args, **kwargs)
        if (whole := rows.whole(shape)) is None:
            return original(shape, *args, **kwargs)
        with _for_all():
            return rows.own(original(whole, *args, **kwargs), shape)

    return draw


def dropout(rows_here: RowsHere) -> Callable[..., Any]:
    """What stands in for Keras's `dropout`."""

    def drop(
        original: Callable[..., Any],
        inputs: Any,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: Any = None,
    ) -> Any:
        rows = rows_here() if _is_set(seed) and 0.0 < rate < 1.0 else None
        if rows is None:
            return original(inputs, rate, noise_shape, seed)
        given = noise_shape or [None] * len(inputs.shape)
        shape = [own if size is None else size for own, size in zip(inputs.shape, given, strict=True)]
        # Of a single row, SpatialDropout's shape can't be told from one that all rows share.
        if given[0] == 1 and rows.rows != 1:
            with _for_all():
                return original(inputs, rate, noise_shape, seed)
        if (whole := rows.whole(shape)) is None:
            return original(inputs, rate, noise_shape, seed)
        with _for_all():
            kept = rows.own(original(ops.ones(whole), rate, None, seed), shape) > 0
        return ops.where(ops.broadcast_to(kept, inputs.shape), inputs / (1.0 - rate), ops.zeros_like(inputs))

    return drop


def _is_set(seed: Any) -> bool:
    """Whether the program gave a seed, itself or to the generator that `seed` is."""
    if isinstance(seed, SeedGenerator):
        return seed.get_config()["seed"] is not None
    return seed is not None


def _has_rows(value: Any) -> bool:
    shape = getattr(value, "shape", ())
    return len(shape) > 0 and shape[0] != 1


@contextmanager
def _for_all() -> Iterator[None]:
    before, _THREAD.for_all = is_for_all(), True
    try:
        yield
    finally:
        _THREAD.for_all = before
