# SPDX-License-Identifier: Apache-2.0
"""A loop written by hand around torch's DistributedDataParallel, on the same Keras model."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import torch
import torch.distributed as dist
from _model import build
from _workloads import GLOBAL_BATCH, Workload
from torch.nn.parallel import DistributedDataParallel

from stratagem import keras_fit
from stratagem._core import env
from stratagem.data._split import share_of
from stratagem.engines.torch._local import LocalTransport
from stratagem.keras_fit import _step


class HandLoop:
    """Each process trains on its rows of every global batch; DistributedDataParallel averages the gradients."""

    def __init__(self, workload: Workload) -> None:
        job = env.job()
        assert job is not None, "a pool started this process"
        store = dist.FileStore(str(job.directory / "hand-loop"), job.world_size)
        dist.init_process_group("gloo", store=store, rank=job.rank, world_size=job.world_size)
        self._share = share_of(job.rank, job.world_size, GLOBAL_BATCH)
        self._model = build(workload)
        # Gradients that are views of the buckets spare DistributedDataParallel a copy.
        self._parallel = DistributedDataParallel(self._model, gradient_as_bucket_view=True)
        self._loss = keras.losses.SparseCategoricalCrossentropy()
        self._accuracy = keras.metrics.SparseCategoricalAccuracy()

    def threads(self) -> str:
        """What each process computes with."""
        return str(torch.get_num_threads())

    def train(self, x: Any, y: Any) -> None:
        """One pass over the rows."""
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
        with self._around():
            for start in range(self._share.start, len(inputs), GLOBAL_BATCH):
                rows = slice(start, start + self._share.rows)
                self._train_step(inputs[rows], labels[rows])

    def _train_step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._model.zero_grad()
        y_pred = self._parallel(x, training=True)
        loss: Any = self._loss(y, y_pred)
        loss.backward()
        weights = self._model.trainable_weights
        with torch.no_grad():
            self._model.optimizer.apply([weight.value.grad for weight in weights], weights)
            self._accuracy.update_state(y, y_pred)

    def _around(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class HandLoopWithOurKernels(HandLoop):
    """The same loop, with the faster kernels that Stratagem puts into Keras while a step of its own runs."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        keras_fit.install()

    def _around(self) -> contextlib.AbstractContextManager[Any]:
        # To the hooks each process is a job of its own: DistributedDataParallel knows of the others.
        alone = share_of(0, 1, self._share.rows)
        step = _step.Step(
            share=alone, transport=LocalTransport(), weighs_losses=True, reduces_gradients=False, fast_paths=True
        )
        return _step.running(step)
