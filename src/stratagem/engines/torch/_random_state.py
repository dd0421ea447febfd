# SPDX-License-Identifier: Apache-2.0
"""The random states of Python, numpy and torch: the same in every process of a job, but for what a replica draws."""

from __future__ import annotations

import zlib

import torch

from stratagem.engines._random_state import STRIDE, put_random_states, random_states
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


def mixed(seed: int, replica: int) -> int:
    """The seed of a replica's own stream; replica 0 has `seed` itself."""
    return (seed + replica * STRIDE) & 0xFFFFFFFF


def stream(state: bytes, replica: int) -> torch.Tensor:
    """The random state with which a replica's own stream begins, where the common one is `state`."""
    return torch.Generator().manual_seed(mixed(zlib.crc32(state), replica)).get_state()


class RunRandomState:
    """Around a function that `strategy.run` runs: torch's random state inside, a stream for each replica.

    A stream begins from the state outside, which is the same in every process and stays so, and goes on from call to
    call until the program draws outside, or sets a seed.

    Args:
        replica: This replica's number.
        device: Where it computes.
    """

    def __init__(self, replica: int, device: torch.device) -> None:
        self._replica = replica
        self._device = device
        self._outside = self._own = torch.default_generator.get_state()
        self._left = b""
        self._begins = False
        self._cuda_seed: int | None = None

    def __enter__(self) -> None:
        self._outside = torch.default_generator.get_state()
        outside = self._outside.numpy().tobytes()
        self._begins = outside != self._left
        if self._begins:
            self._own = stream(outside, self._replica)
        if self._device.type == "cuda":
            self._part_on_cuda()
        torch.default_generator.set_state(self._own)

    def __exit__(self, *_failure: object) -> None:
        self._own = torch.default_generator.get_state()
        torch.default_generator.set_state(self._outside)
        if self._begins:
            # So that a seed is seen that is set again. By every replica, whether it drew or, without rows, did not.
            torch.rand(())
            self._left = torch.default_generator.get_state().numpy().tobytes()

    def _part_on_cuda(self) -> None:
        # A device belongs to one process, and nothing outside the function has to be drawn there as elsewhere.
        if torch.cuda.initial_seed() != self._cuda_seed:
            self._cuda_seed = mixed(torch.cuda.initial_seed(), self._replica)
            torch.cuda.manual_seed(self._cuda_seed)
