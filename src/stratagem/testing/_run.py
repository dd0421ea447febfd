# SPDX-License-Identifier: Apache-2.0
"""One function, once, on several replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stratagem.launch import ReplicaPool

T = TypeVar("T")


def run_replicas(fn: Callable[..., T], replicas: int, *args: object, timeout_seconds: float | None = 120.0) -> list[T]:
    """Call `fn(*args)` in `replicas` new processes that form one job.

    Args:
        fn: Any function.
        replicas: How many.
        args: Its arguments, the same for every replica.
        timeout_seconds: After this long the processes are ended.

    Returns:
        The results by rank.

    Raises:
        ReplicaFailedError: a replica raised, ended, or did not come back in time.

    Example:
        >>> from stratagem.testing import run_replicas
        >>> run_replicas(len, 2, "abc", timeout_seconds=30)  # doctest: +SKIP
        [3, 3]
    """
    with ReplicaPool(replicas=replicas) as pool:
        return pool.run(fn, *args, timeout_seconds=timeout_seconds)
