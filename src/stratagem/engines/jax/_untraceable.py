# SPDX-License-Identifier: Apache-2.0
"""What to say when a function asks a traced value for its number."""

from __future__ import annotations

import linecache
import site
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

import jax

from stratagem.errors import TracingError

__all__ = ["NEEDS_VALUES", "ReadInTraceError", "explained"]

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class ReadInTraceError(TracingError):
    """A function that is being traced took an element of a data set."""

    def __init__(self) -> None:
        super().__init__(
            "the next element of a data set was taken inside a function that is traced once, which would see the same "
            "element for ever",
            fix="take it outside, and give it to strategy.run(step, args=(batch,))",
        )


_OURS = str(Path(__file__).parents[2])
_LIBRARIES = tuple({*site.getsitepackages(), site.getusersitepackages(), sys.prefix + "/lib", sys.base_prefix + "/lib"})


def explained(error: BaseException, call: str) -> TracingError:
    """`error`, which jax raised in a function that `call` traced, as one that names the user's line."""
    place = ""
    for frame, line in _frames(error.__traceback__):
        path = frame.f_code.co_filename
        if not path.startswith((_OURS, *_LIBRARIES, "<")):
            text = linecache.getline(path, line).strip()
            place = f" at {path}:{line}: {text}" if text else f" at {path}:{line}"
    return TracingError(
        f"{call} traces the function once for all replicas and calls, so its tensors have no values while it runs, but "
        f"the function needs one{place}",
        fix="return the tensor and look at its value outside (float, int, print, numpy); where the function branches "
        "on it, use keras.ops.where(condition, a, b) or keras.ops.cond(condition, f, g)",
    )


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
