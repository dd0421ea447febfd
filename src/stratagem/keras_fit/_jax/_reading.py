# SPDX-License-Identifier: Apache-2.0
"""Where the batches of a job of several processes come from: the same ones, in the same order, in every process.

Arrays that are the same in every process are read by each of them. Everything else (data sets, loaders, generators,
arrays that differ because nobody seeded them) is read by the chief, which hands out what it read.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from keras import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from stratagem.engines._random_state import put_random_states, random_states
from stratagem.engines.jax import JaxEngine
from stratagem.errors import JobMismatchError
from stratagem.keras_fit._divided import DividedData
from stratagem.keras_fit._fingerprint import fingerprint, warn_of_other_data
from stratagem.keras_fit._jax import _divided
from stratagem.keras_fit._jax._resume import batches_after

_CHIEF = 0

_same_everywhere: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def spans_processes(engine: JaxEngine) -> bool:
    """Whether the job has replicas in other processes."""
    return len(engine.local_replica_ids) < engine.num_replicas


def batches_of(
    engine: JaxEngine, adapter: Any, count: int = 0, begin: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """One pass over the data of a Keras data adapter.

    Args:
        engine: This process's.
        adapter: Keras's.
        count: How many batches to leave out at the beginning; those of arrays are not read.
        begin: Called before the first of them is read, or its order drawn.
    """
    if isinstance(adapter, DividedData):
        return _divided.batches_of(engine, adapter, count, begin)
    batches = _batches_of(engine, adapter, count, begin)
    if not count or engine.replicas.on_cpu:
        return batches
    # One was on its way to the devices already when the run was stopped: what was drawn for it was drawn by then.
    first = next(batches, None)
    return batches if first is None else itertools.chain([first], batches)


def _batches_of(engine: JaxEngine, adapter: Any, count: int, begin: Callable[[], None]) -> Iterator[Any]:
    if not spans_processes(engine):
        return batches_after(adapter, count, begin)
    share_random_state(engine)
    if adapter not in _same_everywhere:
        # Once, not in every epoch: it reads the arrays.
        _same_everywhere[adapter] = _is_same_everywhere(engine, adapter)
    if _same_everywhere[adapter]:
        return batches_after(adapter, count, begin)
    read = None
    if engine.rank == _CHIEF:
        read = (tree.map_structure(_to_numpy, batch) for batch in batches_after(adapter, count, begin))
    return engine.hand_out(read, _CHIEF, "the next batch")


def _is_same_everywhere(engine: JaxEngine, adapter: Any) -> bool:
    mine = fingerprint(adapter._inputs) if isinstance(adapter, ArrayDataAdapter) else None
    everyones = engine.all_processes_objects((mine, adapter.num_batches))
    chiefs = everyones[_CHIEF]
    for rank, (_, num_batches) in enumerate(everyones):
        # Keras counts the steps of each process by its own.
        if num_batches != chiefs[1]:
            raise JobMismatchError(
                f"process {rank} has {num_batches} batches an epoch, and process {_CHIEF} {chiefs[1]}",
                fix="give every process the same data in the same batches",
            )
    if mine is None:
        return False
    alike = [theirs == chiefs for theirs in everyones]
    if not all(alike):
        warn_of_other_data(engine.rank, alike)
    return all(alike)


def share_random_state(engine: JaxEngine) -> None:
    """Go on with the chief's random states everywhere: orders and initial weights are drawn from them."""
    put_random_states(engine.take_object(random_states(), _CHIEF, "the random state"))


def _to_numpy(part: Any) -> Any:
    return np.asarray(part) if isinstance(part, jax.Array) else part
