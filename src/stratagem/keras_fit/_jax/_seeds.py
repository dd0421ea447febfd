# SPDX-License-Identifier: Apache-2.0
"""Random draws inside a replica's code: different on every replica, reproducible, those of one device on replica 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from keras.random import SeedGenerator

from stratagem.engines._random_state import STRIDE
from stratagem.engines.jax._tracing import in_replica_trace, replica_id, replicas, rows_of_replica
from stratagem.keras_fit._draws import Rows, is_for_all
from stratagem.keras_fit._jax import _trace


def draw_seed(original: Callable[[Any], Any], seed: Any) -> Any:
    """`keras.src.backend.jax.random.draw_seed` with the replica mixed into a generator's seed.

    The generator's state advances as on one device, so it stays equal on all replicas. A step over the global batch
    needs none of this: it draws what one device draws.
    """
    drawn = original(seed)
    if is_for_all() or not isinstance(seed, SeedGenerator) or not (_trace.replica_step() or in_replica_trace()):
        return drawn
    return drawn.at[0].add(replica_id().astype(jnp.uint32) * jnp.uint32(STRIDE))


def rows_here() -> Rows | None:
    """The rows of the replica that is running, or None if nobody knows."""
    step = _trace.replica_step()
    if step is not None:
        return Rows(replica_id() * step.rows, step.rows, step.num_replicas * step.rows)
    every, rows = replicas(), rows_of_replica()
    return None if every is None or rows is None else Rows(replica_id() * rows, rows, every.size * rows)
