# SPDX-License-Identifier: Apache-2.0
"""The step that is running on this thread, for the hooks that act only inside one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratagem.data._split import Share
from stratagem.engines._progress import PROGRESS

if TYPE_CHECKING:
    from stratagem.engines.torch._transport import Transport

_THREAD = threading.local()


@dataclass
class Step:
    """One replica's part of one training, test or prediction step.

    Attributes:
        share: Which rows of the global batch this replica has. A replica without rows runs the step on the batch's
            first row, so that it takes part in every collective, and nothing that it computes counts.
        transport: Of the job.
        weighs_losses: Losses weigh themselves, so that their sum over replicas is the loss of one device. Where
            Keras's own code does not compute the loss, gradients are weighted instead, by rows.
        reduces_gradients: `optimizer.apply` sums the gradients over replicas.
        fast_paths: Faster kernels of the same results may stand in.
    """

    share: Share
    transport: Transport
    weighs_losses: bool
    reduces_gradients: bool
    fast_paths: bool

    @property
    def num_replicas(self) -> int:
        """Replicas of the job."""
        return self.transport.world_size

    @property
    def counts(self) -> bool:
        """Whether this replica has rows, so that what it computes counts."""
        return self.share.rows > 0


def current() -> Step | None:
    """The step running on this thread, or None."""
    return getattr(_THREAD, "step", None)


@contextmanager
def running(step: Step) -> Iterator[Step]:
    """Make `step` the current one inside the block."""
    PROGRESS.step += 1
    previous = current()
    _THREAD.step = step
    try:
        yield step
    finally:
        _THREAD.step = previous


@contextmanager
def suspended() -> Iterator[None]:
    """No step is current inside the block."""
    previous = current()
    _THREAD.step = None
    try:
        yield
    finally:
        _THREAD.step = previous
