# SPDX-License-Identifier: Apache-2.0
"""The batches of a `DistributedDataset`, of which each process has the rows of its own replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from keras import tree

from stratagem.data._feeds import BatchParts, Parts
from stratagem.engines.jax import JaxEngine
from stratagem.keras_fit._divided import DividedData
from stratagem.keras_fit._rows import num_rows


def batches_of(engine: JaxEngine, data: DividedData, count: int, begin: Callable[[], None]) -> Iterator[Any]:
    """The global batches of one pass, in order; `count` and `begin` as in `DividedData.steps`."""
    steps = data.steps(count, begin)
    return (batch for parts in steps if (batch := _global(engine, parts)) is not None)


def _global(engine: JaxEngine, parts: Parts) -> Any | None:
    """The batch that all replicas' parts make up, or None if none of them has rows."""
    mine = tree.map_structure(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)
    counts = _counts(engine, parts)
    if sum(counts) == 0:
        return None
    if len(parts) == engine.num_replicas:
        return mine
    if len(set(counts)) == 1:
        sharding = engine.replicas.sharded
        return tree.map_structure(
            lambda leaf: jax.make_array_from_process_local_data(sharding, leaf, (sum(counts), *leaf.shape[1:])), mine
        )
    # Rows don't lie where XLA wants them, so every process gets the whole batch.
    return tree.map_structure(lambda *leaves: np.concatenate(leaves), *engine.all_processes_objects(mine))


def _counts(engine: JaxEngine, parts: Parts) -> list[int]:
    """The rows of each replica."""
    own = [num_rows(part) for part in parts]
    if len(parts) == engine.num_replicas:
        return own
    if isinstance(parts, BatchParts):
        rows = parts.shares[0].global_rows
        if rows % engine.num_replicas == 0:
            return [rows // engine.num_replicas] * engine.num_replicas
    return list(engine.all_gather_objects(own))
