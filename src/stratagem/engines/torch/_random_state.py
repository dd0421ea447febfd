# SPDX-License-Identifier: Apache-2.0
"""The random states of Python, numpy and torch, kept the same in every process of a job."""

from __future__ import annotations

import torch

from stratagem.engines._random_state import put_random_states, random_states
from stratagem.engines.torch._transport import Transport

_CHIEF = 0


def share_random_state(transport: Transport) -> None:
    """Give every process the chief's random states, so that what is drawn from now on is the same; a collective."""
    states = None
    if transport.rank == _CHIEF:
        states = (random_states(), torch.get_rng_state())
    with transport.from_source(_CHIEF, states, [], "the random state") as (states, _):
        if transport.rank != _CHIEF:
            common, torch_state = states
            put_random_states(common)
            torch.set_rng_state(torch_state)
