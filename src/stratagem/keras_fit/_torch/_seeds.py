# SPDX-License-Identifier: Apache-2.0
"""Random draws inside a step: different on every replica, reproducible, and those of one device on replica 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras.random import SeedGenerator

from stratagem.keras_fit import _step

# Odd and without pattern, so that replicas' streams don't meet.
_STRIDE = 0x9E3779B1


def draw_seed(original: Callable[[Any], Any], seed: Any) -> Any:
    """`keras.src.backend.torch.random.draw_seed` with the replica mixed into a generator's seed.

    The generator's state advances as on one device, so it stays equal on all replicas.
    """
    drawn = original(seed)
    step = _step.current()
    if step is None or step.transport.rank == 0 or not isinstance(seed, SeedGenerator):
        return drawn
    first, second = (int(word) for word in drawn)
    return (first + step.transport.rank * _STRIDE) & 0xFFFFFFFF, second
