# SPDX-License-Identifier: Apache-2.0
"""What torch adds to going on where a `fit` was stopped: its random states, and how batches are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter

from stratagem.engines import select
from stratagem.keras_fit import _attachment, _resume, _resume_random
from stratagem.keras_fit._resume_random import RandomStates
from stratagem.keras_fit._torch._adapter import OwnBatches, batches_after
from stratagem.keras_fit._torch._runner import runner_of
from stratagem.keras_fit._torch._seeds import ReplicaRandomState


class TorchRandom:
    """The random states of a process with torch."""

    def take_random_states(self, adapter: Any) -> dict[str, np.ndarray]:
        """Those of Python, numpy and torch, and those of a loader's own generators."""
        states = {**_resume_random.take(), "torch": torch.get_rng_state().numpy().copy()}
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state().numpy().copy()
        for place, generator in enumerate(_generators(adapter)):
            states[f"generator_{place}"] = generator.get_state().cpu().numpy().copy()
        return states

    def put_random_states(self, states: RandomStates, adapter: Any) -> None:
        """Go on with them."""
        _resume_random.put(states)
        if "torch" in states:
            torch.set_rng_state(torch.tensor(states["torch"]))
        # The other replicas' devices have states of their own.
        if "cuda" in states and torch.cuda.is_available() and select.engine().rank == 0:
            torch.cuda.set_rng_state(torch.tensor(states["cuda"]))
        for place, generator in enumerate(_generators(adapter)):
            if f"generator_{place}" in states:
                generator.set_state(torch.tensor(states[f"generator_{place}"]))

    def knows_order(self, adapter: Any) -> bool:
        """Whether the order of the data depends on these states alone."""
        return isinstance(adapter, (ArrayDataAdapter, TorchDataLoaderAdapter))

    def take_replica_states(self, model: Any) -> list[dict[str, np.ndarray]]:
        """That from which layers without a seed draw on this replica, if it is another than the process's."""
        random = _random_of(model)
        return [{} if random is None else random.arrays()]

    def put_replica_states(self, model: Any, states: Sequence[RandomStates]) -> None:
        """Go on with it; replicas that there were not begin anew from the common state."""
        random = _random_of(model)
        rank = 0 if random is None else runner_of(model).transport.rank
        if random is not None and rank < len(states):
            random.go_on(states[rank])


RANDOM = TorchRandom()


def _generators(adapter: Any) -> list[torch.Generator]:
    """Those that a user's own loader draws its order from, each once."""
    if not isinstance(adapter, TorchDataLoaderAdapter):
        return []
    loader = adapter.get_torch_dataloader()
    holders = [loader, getattr(loader, "sampler", None), getattr(loader.batch_sampler, "sampler", None)]
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _random_of(model: Any) -> ReplicaRandomState | None:
    return None if _attachment.strategy_of(model) is None else runner_of(model).random


def get_iterator(original: Callable[[Any], Any], epoch_iterator: Any) -> Iterator[Any]:
    """Stands in for `TorchEpochIterator._get_iterator`, of whose result Keras takes the iterator at once."""
    adapter = epoch_iterator.data_adapter

    def open_pass(count: int, begin: Callable[[], None]) -> Iterator[Any]:
        if isinstance(adapter, OwnBatches):
            return adapter.batches(count, begin)
        loader = original(epoch_iterator)
        if isinstance(adapter, ArrayDataAdapter) and count:
            batch_sampler = batches_after(loader.batch_sampler, count, begin)
            loader = torch.utils.data.DataLoader(
                loader.dataset, batch_sampler=batch_sampler, collate_fn=loader.collate_fn
            )
            return iter(loader)
        return _resume.dropped(iter(loader), count, begin)

    return _resume.opened(open_pass, adapter)
