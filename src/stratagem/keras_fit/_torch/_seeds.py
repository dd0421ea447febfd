# SPDX-License-Identifier: Apache-2.0
"""Random draws inside a step: different on every replica, reproducible, and those of one device on replica 0."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from keras.random import SeedGenerator

from stratagem._core import contexts
from stratagem.engines.torch._random_state import mixed, stream
from stratagem.keras_fit import _step
from stratagem.keras_fit._draws import Rows, is_for_all


def draw_seed(original: Callable[[Any], Any], seed: Any) -> Any:
    """`keras.src.backend.torch.random.draw_seed` with the replica mixed into a generator's seed.

    The generator's state advances as on one device, so it stays equal on all replicas.
    """
    drawn = original(seed)
    replica = 0 if is_for_all() else _replica()
    if replica == 0 or not isinstance(seed, SeedGenerator):
        return drawn
    first, second = (int(word) for word in drawn)
    return mixed(first, replica), second


def rows_here() -> Rows | None:
    """The rows of the replica that is running, or None if nobody knows, or there is but one."""
    step = _step.current()
    if step is not None:
        share = step.share
        return None if step.num_replicas == 1 else Rows(share.start, share.rows, share.global_rows)
    context = contexts.current()
    known = None if context is None else context.rows
    return None if known is None else Rows(*known)


def _replica() -> int:
    step = _step.current()
    if step is not None:
        return step.transport.rank
    context = contexts.current()
    if context is None or context.replica_context is None:
        return 0
    return context.replica_context.replica_id_in_sync_group


class ReplicaRandomState:
    """torch's own random state inside a step, from which layers without a seed draw.

    Outside steps it is the same in every process, for orders and initial weights. Inside, replica 0 goes on with it as
    one device does, and every other replica has a state of its own that starts from the common one.

    Args:
        replica: This replica's number.
        device: Where it computes.
    """

    def __init__(self, replica: int, device: torch.device) -> None:
        self._replica = replica
        self._device = device
        self._own: torch.Tensor | None = None

    def restart(self) -> None:
        """Start from the common state at the next step, so that equal runs draw equal numbers."""
        self._own = None

    def arrays(self) -> dict[str, np.ndarray]:
        """The state from which this replica draws, to be kept in a file; nothing while it is the common one."""
        if self._own is None:
            return {}
        states = {"torch": self._own.numpy().copy()}
        if self._device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self._device).numpy().copy()
        return states

    def go_on(self, states: Mapping[str, np.ndarray]) -> None:
        """Go on with what `arrays` returned on this replica, in this process or another."""
        self._own = torch.tensor(states["torch"]) if "torch" in states else None
        if "cuda" in states and self._device.type == "cuda":
            torch.cuda.set_rng_state(torch.tensor(states["cuda"]), self._device)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Around a step."""
        if self._replica == 0:
            yield
            return
        common = torch.get_rng_state()
        if self._own is None:
            state = common.numpy().tobytes()
            self._own = stream(state, self._replica)
            if self._device.type == "cuda":
                torch.cuda.manual_seed(mixed(zlib.crc32(state), self._replica))
        before = self._own
        torch.set_rng_state(before)
        try:
            yield
        finally:
            self._own = torch.get_rng_state()
            torch.set_rng_state(common)
            if not torch.equal(self._own, before):
                # As replica 0's moves on: the next `train_on_batch` starts from another state, and draws other numbers.
                torch.rand(())
