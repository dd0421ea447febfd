# SPDX-License-Identifier: Apache-2.0
"""Where batches and a model's state lie: rows divided over the replicas' devices, state on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from keras import tree

from stratagem.engines.jax._mesh import Replicas
from stratagem.keras_fit._rows import num_rows


def place_batch(replicas: Replicas, data: Any, divides: bool) -> Any:
    """`data` with its rows on the replicas' devices; a batch that does not divide evenly is whole on each of them."""
    sharding = replicas.sharded if divides else replicas.replicated
    if all(part is None or _lies(part, sharding) for part in tree.flatten(data)):
        return data
    if sharding.is_fully_addressable:
        return jax.device_put(data, sharding)
    # Every process has the whole batch, and sends its own rows to its devices.
    return tree.map_structure(lambda part: None if part is None else _own_parts(part, sharding), data)


def place_state(replicas: Replicas, state: Any) -> Any:
    """`state` on every replica's device; in a job of several processes, as the chief has it."""
    leaves, structure = jax.tree.flatten(state)
    astray = [place for place, leaf in enumerate(leaves) if not _lies(leaf, replicas.replicated)]
    if not astray:
        return state
    if replicas.replicated.is_fully_addressable:
        return jax.device_put(state, replicas.replicated)
    values = multihost_utils.broadcast_one_to_all([np.asarray(leaves[place]) for place in astray])
    for place, value in zip(astray, values, strict=True):
        leaves[place] = _own_parts(np.asarray(value), replicas.replicated)
    return jax.tree.unflatten(structure, leaves)


def _own_parts(part: Any, sharding: NamedSharding) -> jax.Array:
    array = np.asarray(part)
    array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _lies(part: Any, sharding: NamedSharding) -> bool:
    return isinstance(part, jax.Array) and part.sharding == sharding


def ahead(replicas: Replicas, batches: Iterator[Any]) -> Iterator[Any]:
    """`batches`, each on the devices; on accelerators the next one is on its way while one is computed on."""
    if replicas.on_cpu:
        # There the copy would only compete with the step.
        for batch in batches:
            num_rows(batch)  # says so if parts disagree, before Keras gets to feel it
            yield batch
        return
    placed = (place_batch(replicas, batch, num_rows(batch) % replicas.size == 0) for batch in batches)
    waiting = next(placed, None)
    while waiting is not None:
        current, waiting = waiting, next(placed, None)
        yield current
