# SPDX-License-Identifier: Apache-2.0
"""Saving from every process: the chief writes, and the others return when the file is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from stratagem.engines.jax import JaxEngine
from stratagem.errors import ReplicaFailedError
from stratagem.keras_fit._saved import Elsewhere, saved_key

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
    key = saved_key(path)
    _saves[key] += 1
    notice, total = f"{key} {_saves[key]}", sum(_saves.values())
    if engine.rank == _CHIEF:
        others.post(f"save {total} begun")
        try:
            return write()
        except BaseException:
            others.post(f"{notice} failed")
            raise
        finally:
            others.post(notice)
            others.post(f"save {total} ended")
    elsewhere = Elsewhere()

    def complete() -> bool:
        if others.posted(notice):
            return True
        return elsewhere.is_sure(
            saved_this_name=others.posted(f"{key} 1"),
            saving=others.posted(f"save {total + 1} begun") and not others.posted(f"save {total + 1} ended"),
            saved_as_often=others.posted(f"save {total} ended"),
        )

    others.wait_until(complete, _CHIEF, f"saving to {path!s}")
    if others.posted(f"{notice} failed"):
        raise ReplicaFailedError(f"process {_CHIEF} could not save {path!s}", fix=f"read what process {_CHIEF} printed")
    return None
