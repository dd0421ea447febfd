# SPDX-License-Identifier: Apache-2.0
"""How many rows a batch has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from keras import tree

from stratagem.errors import ArgumentError, BatchMismatchError


def num_rows(batch: Any) -> int:
    """The rows of a batch.

    Raises:
        BatchMismatchError: its parts disagree.
    """
    rows = None
    for path, part in tree.flatten_with_path(batch):
        if part is None or getattr(part, "ndim", 0) == 0:
            continue
        if rows is None:
            first, rows = path, int(part.shape[0])
        elif part.shape[0] != rows:
            raise BatchMismatchError(
                f"one batch has {rows} rows in {_place(first)} but {part.shape[0]} rows in {_place(path)}",
                fix="give inputs, targets and sample weights the same number of rows",
            )
    if rows is None:
        raise BatchMismatchError("a batch has no array with rows in it", fix="give at least one array per batch")
    return rows


@contextlib.contextmanager
def naming_empty_data() -> Iterator[None]:
    """Where `predict` is given no row, Keras itself falls over a variable of its own that no batch has set.

    Raises:
        ArgumentError: it was.
    """
    try:
        yield
    except UnboundLocalError as error:
        if "'batch_outputs'" not in str(error):
            raise
        raise ArgumentError(
            "predict() was given no rows, so nobody knows what its outputs look like",
            fix="leave the call out where there is nothing to predict",
        ) from None


def _place(path: tuple[Any, ...]) -> str:
    names = ("x", "y", "sample_weight")
    first, *rest = path or (0,)
    name = names[first] if isinstance(first, int) and first < len(names) else str(first)
    return name + "".join(f"[{key!r}]" for key in rest)
