# SPDX-License-Identifier: Apache-2.0
"""The random states of Python and numpy, from which orders and initial weights are drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

__all__ = ["STRIDE", "put_random_states", "random_states"]

# Between the seeds of replicas: odd and without pattern, so that their streams don't meet.
STRIDE = 0x9E3779B1


def random_states() -> tuple[Any, Any]:
    """This process's, picklable."""
    return random.getstate(), np.random.get_state()


def put_random_states(states: tuple[Any, Any]) -> None:
    """Go on with `states`, which `random_states` returned in this process or another."""
    python_state, numpy_state = states
    random.setstate(python_state)
    np.random.set_state(numpy_state)
