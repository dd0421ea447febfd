# SPDX-License-Identifier: Apache-2.0
"""Saving from every replica: the chief writes, and the others return when the file is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from stratagem.engines.torch._transport import Transport
from stratagem.engines.torch._waiting import wait_until
from stratagem.errors import CollectiveTimeoutError, ReplicaFailedError
from stratagem.keras_fit._saved import Elsewhere, saved_key

_saves: Counter[str] = Counter()
_BEGUN, _ENDED = "saves begun", "saves ended"


def save(transport: Transport, path: Any, write: Callable[[], Any], timeout_seconds: float) -> Any:
    """Call `write` on the chief. It is fine for the chief to save alone; a replica that is not the chief waits.

    Raises:
        CollectiveTimeoutError: the chief did not save to `path` in time.
        ReplicaFailedError: the chief could not save.
    """
    if transport.world_size == 1:
        return write()
    key = saved_key(path)
    if transport.rank == 0:
        transport.count(_BEGUN, 1)
        try:
            return write()
        except BaseException:
            transport.count(f"{key} failed {transport.count(key, 0) + 1}", 1)
            raise
        finally:
            transport.count(key, 1)
            transport.count(_ENDED, 1)
    _saves[key] += 1
    wanted, total, elsewhere = _saves[key], sum(_saves.values()), Elsewhere()

    def complete() -> bool:
        of_this_name = transport.count(key, 0)
        if of_this_name >= wanted:
            return True
        begun, ended = transport.count(_BEGUN, 0), transport.count(_ENDED, 0)
        return elsewhere.is_sure(saved_this_name=of_this_name > 0, saving=begun > ended, saved_as_often=ended >= total)

    wait_until(
        complete,
        timeout_seconds=timeout_seconds,
        on_stall=lambda: None,
        on_timeout=lambda seconds: CollectiveTimeoutError(
            f"replica {transport.rank} waited {seconds:g} seconds for replica 0 to save {path!s}",
            fix="save on every replica under the same file name, or on replica 0 alone",
        ),
    )
    if transport.count(f"{key} failed {wanted}", 0):
        raise ReplicaFailedError(f"replica 0 could not save {path!s}", fix="read what replica 0 printed")
    return None
