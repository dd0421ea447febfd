# SPDX-License-Identifier: Apache-2.0
"""The random states of Python, numpy and torch, kept the same in every process of a job."""

from __future__ import annotations

import random

import numpy as np
import torch

from stratagem.engines.torch._transport import Transport

_CHIEF = 0


def share_random_state(transport: Transport) -> None:
    """Give every process the chief's random states, so that what is drawn from now on is the same; a collective."""
    states = None
    if transport.rank == _CHIEF:
        states = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    with transport.from_source(_CHIEF, states, [], "the random state") as (states, _):
        if transport.rank != _CHIEF:
            python_state, numpy_state, torch_state = states
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            torch.set_rng_state(torch_state)
