# SPDX-License-Identifier: Apache-2.0
"""Runs one model under its strategy: what stands behind `fit`, `evaluate`, `predict` and the `*_on_batch` methods."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from keras import tree

from stratagem._core import env
from stratagem.data._feeds import Divided
from stratagem.data._split import Share
from stratagem.engines import select
from stratagem.engines.torch import TorchEngine
from stratagem.engines.torch._transport import Transport
from stratagem.keras_fit._rows import num_rows
from stratagem.keras_fit._step import Step
from stratagem.keras_fit._torch._adapter import OwnBatches, ReplicaDataAdapter
from stratagem.keras_fit._torch._batches import BatchLedger, LocalBatch, as_tensors, cut
from stratagem.keras_fit._torch._divided import DividedBatches
from stratagem.keras_fit._torch._seeds import ReplicaRandomState
from stratagem.keras_fit._torch._steps import SingleSteps, Steps

_LOG = logging.getLogger("stratagem")

_runners: weakref.WeakKeyDictionary[Any, Runner] = weakref.WeakKeyDictionary()


class Runner:
    """One model on one replica.

    Args:
        model: Compiled under a strategy.
        transport: Of the job.
        device: Where this replica computes.
    """

    def __init__(self, model: Any, transport: Transport, device: torch.device) -> None:
        self._reference = weakref.ref(model)
        self._transport = transport
        self._ledger = BatchLedger()
        self._steps: Steps | SingleSteps | None = None
        self._depth = 0
        self._fast_paths = env.fast_paths()
        self.random = ReplicaRandomState(transport.rank, device)

    @property
    def transport(self) -> Transport:
        """Of the job."""
        return self._transport

    @property
    def is_chief(self) -> bool:
        """Whether this replica writes files and shows progress."""
        return self._transport.rank == 0

    @contextmanager
    def method(self) -> Iterator[bool]:
        """Around one of the model's methods; says whether it is the outermost."""
        outermost = self._depth == 0
        if outermost:
            self._fast_paths = env.fast_paths()
            self.random.restart()
        self._depth += 1
        try:
            yield outermost
        finally:
            self._depth -= 1

    def adapt(self, adapter: Any) -> Any:
        """The replica's view of a data adapter that Keras made."""
        if self._transport.world_size == 1 or isinstance(adapter, OwnBatches):
            return adapter
        return ReplicaDataAdapter(adapter, self._transport, self._ledger)

    def divided(self, dataset: Divided, class_weight: Any) -> DividedBatches:
        """The replica's view of a data set that is divided among the replicas."""
        return DividedBatches(dataset, class_weight, self._transport, self._ledger)

    def prepare(self) -> None:
        """Make the steps, or make them anew if the model has changed; the model is built by now."""
        model = self._reference()
        assert model is not None, "its own method calls this"
        if self._steps is not None and self._steps.fit(model):
            return
        if self._steps is not None:
            self._steps.close()
        if self._transport.world_size == 1:
            self._steps = SingleSteps(model)
            return
        if model.jit_compile:
            _LOG.warning(
                "model %r: jit_compile=True is not used on %d replicas with the torch engine; steps run eagerly",
                model.name,
                self._transport.world_size,
            )
        self._steps = Steps(model, self._transport)

    def train(self, batches: list[Any]) -> Any:
        """What Keras calls with the batches of one execution."""
        return self._run(batches, lambda steps: steps.train)

    def test(self, batches: list[Any]) -> Any:
        """The same for `evaluate`."""
        return self._run(batches, lambda steps: steps.test)

    def predict(self, batches: list[Any]) -> Any:
        """The same for `predict`; the outputs of several batches are joined."""
        return self._run(batches, lambda steps: steps.predict, join=True)

    def _run(self, batches: list[Any], method: Callable[[Any], Callable[[Step, Any], Any]], join: bool = False) -> Any:
        assert self._steps is not None, "prepared by make_*_function"
        results = []
        for data in batches:
            local = self._local(data)
            step = Step(
                share=local.share,
                transport=self._transport,
                weighs_losses=True,
                reduces_gradients=False,
                fast_paths=self._fast_paths,
            )
            with self.random.inside():
                results.append(method(self._steps)(step, local.data))
        return _joined(results) if join and len(results) > 1 else results[-1]

    def _local(self, data: Any) -> LocalBatch:
        local = self._ledger.take(data)
        if local is not None:
            return local
        # From train_on_batch and its like, or alone: the batch is still the global one.
        data = as_tensors(data)
        if self._transport.world_size == 1:
            rows = num_rows(data)
            return LocalBatch(data, Share(0, rows, rows))
        return cut(data, self._transport.rank, self._transport.world_size)


def _joined(outputs: list[Any]) -> Any:
    return tree.map_structure(lambda *parts: torch.cat(parts), *outputs)


def runner_of(model: Any) -> Runner:
    """The model's runner on this process's engine, made at the first call."""
    engine = select.engine()
    assert isinstance(engine, TorchEngine), "the hooks of this folder are installed for this engine only"
    runner = _runners.get(model)
    if runner is None or runner.transport is not engine.transport:
        runner = _runners[model] = Runner(model, engine.transport, engine.device)
    return runner
