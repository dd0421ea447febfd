# SPDX-License-Identifier: Apache-2.0
"""What jax adds to going on where a `fit` was stopped: how batches are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from stratagem.keras_fit import _resume, _resume_random
from stratagem.keras_fit._resume_random import RandomStates


class JaxRandom:
    """The random states of a process with jax, which has none of its own."""

    def take_random_states(self, adapter: Any) -> dict[str, np.ndarray]:
        """Those of Python and numpy."""
        del adapter
        return _resume_random.take()

    def put_random_states(self, states: RandomStates, adapter: Any) -> None:
        """Go on with them."""
        del adapter
        _resume_random.put(states)

    def knows_order(self, adapter: Any) -> bool:
        """Whether the order of the data depends on these states alone."""
        return isinstance(adapter, ArrayDataAdapter)

    def take_replica_states(self, model: Any) -> list[dict[str, np.ndarray]]:
        """None: what replicas draw comes from seeds that are variables."""
        del model
        return []

    def put_replica_states(self, model: Any, states: Sequence[RandomStates]) -> None:
        """Nothing to do."""


RANDOM = JaxRandom()


def batches_after(adapter: Any, count: int, begin: Callable[[], None]) -> Iterator[Any]:
    """One pass over the data of a Keras data adapter without the first `count` batches; those of arrays are not read.

    Args:
        adapter: Keras's.
        count: How many.
        begin: Called before the first is read, or its order drawn.
    """
    if not count or not isinstance(adapter, ArrayDataAdapter):
        return _resume.dropped(iter(adapter.get_jax_iterator()), count, begin)
    reads = False

    def part(sliceable: Any, indices: Any) -> Any:
        return sliceable.convert_to_jax_compatible(sliceable[indices]) if reads else None

    inputs = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="jax")
    batches = _resume.dropped(adapter._get_iterator(part, inputs), count, begin)
    reads = True
    return batches
