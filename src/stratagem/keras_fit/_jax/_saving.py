# SPDX-License-Identifier: Apache-2.0
"""Saving from every process: the chief writes, and the others return when the file is complete."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from stratagem.engines.jax import JaxEngine
from stratagem.errors import ReplicaFailedError

_CHIEF = 0

_saves: Counter[str] = Counter()


def save(engine: JaxEngine, path: Any, write: Callable[[], Any]) -> Any:
    """Call `write` on the chief. It is fine for the chief to save alone; a process that is not the chief waits.

    Raises:
        CollectiveTimeoutError: the chief did not save to `path` in time.
        ReplicaFailedError: the chief could not save.
    """
    others = engine.others
    if others is None:
        return write()
    key = f"saved {os.path.abspath(os.fspath(path))}" if isinstance(path, (str, os.PathLike)) else "saved an object"
    _saves[key] += 1
    notice = f"{key} {_saves[key]}"
    if engine.rank == _CHIEF:
        try:
            return write()
        except BaseException:
            others.post(f"{notice} failed")
            raise
        finally:
            others.post(notice)
    others.wait_for(notice, _CHIEF, f"saving to {path!s}")
    if others.posted(f"{notice} failed"):
        raise ReplicaFailedError(f"process {_CHIEF} could not save {path!s}", fix=f"read what process {_CHIEF} printed")
    return None
