# SPDX-License-Identifier: Apache-2.0
"""Gradients recorded in the place of being applied, for a check of a step function."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Recorded", "note_reduction", "recording", "take"]


@dataclass
class Recorded:
    """What one call of a step function did.

    Attributes:
        names: Of the variables whose gradients it applied, in order.
        gradients: Those gradients, summed over replicas; None where there is none.
        reductions: How often it reduced something over replicas itself.
    """

    names: list[str] = field(default_factory=list[str])
    gradients: list[Any] = field(default_factory=list[Any])
    reductions: int = 0


class _Thread(threading.local):
    recorded: Recorded | None = None


_thread = _Thread()


@contextmanager
def recording() -> Generator[Recorded]:
    """Inside, `optimizer.apply` changes nothing, and leaves its gradients in what this yields."""
    recorded = Recorded()
    outer, _thread.recorded = _thread.recorded, recorded
    try:
        yield recorded
    finally:
        _thread.recorded = outer


def take(gradients: Sequence[Any], variables: Sequence[Any] | None) -> bool:
    """Record gradients that are about to be applied; False if nobody records."""
    recorded = _thread.recorded
    if recorded is None:
        return False
    first = len(recorded.names)
    recorded.names += [
        f"gradient {first + number}" if variables is None else variables[number].path
        for number in range(len(gradients))
    ]
    recorded.gradients += gradients
    return True


def note_reduction() -> None:
    """The step function reduces something over replicas."""
    if _thread.recorded is not None:
        _thread.recorded.reductions += 1
