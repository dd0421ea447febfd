# SPDX-License-Identifier: Apache-2.0
"""The step that is being traced on this thread, for the hooks that act only inside one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_THREAD = threading.local()


@dataclass(frozen=True)
class ReplicaStep:
    """A step whose code sees one replica's rows of a global batch that divides evenly.

    Attributes:
        num_replicas: Of the job.
        rows: Of this replica.
    """

    num_replicas: int
    rows: int


@dataclass(frozen=True)
class GlobalStep:
    """A step whose code sees the whole global batch; XLA divides the work.

    Attributes:
        num_replicas: Of the job.
        rows: Of the global batch.
    """

    num_replicas: int
    rows: int


def replica_step() -> ReplicaStep | None:
    """The step of one replica that is being traced, or None."""
    step = getattr(_THREAD, "step", None)
    return step if isinstance(step, ReplicaStep) else None


def global_step() -> GlobalStep | None:
    """The step over the global batch that is being traced, or None."""
    step = getattr(_THREAD, "step", None)
    return step if isinstance(step, GlobalStep) else None


@contextmanager
def tracing(step: ReplicaStep | GlobalStep) -> Iterator[None]:
    """Make `step` the current one inside the block."""
    previous = getattr(_THREAD, "step", None)
    _THREAD.step = step
    try:
        yield
    finally:
        _THREAD.step = previous
