# SPDX-License-Identifier: Apache-2.0
"""`Model.fit`: as Keras has it, or under Stratagem's MirroredStrategy."""

from __future__ import annotations

import os
from typing import Any

import keras
from _model import build
from _workloads import GLOBAL_BATCH, Workload

import stratagem


class PlainFit:
    """Keras alone."""

    def __init__(self, workload: Workload) -> None:
        self._model = build(workload)

    def threads(self) -> str:
        """What each process computes with."""
        if keras.backend.backend() == "jax":
            import jax

            return f"{len(jax.devices())} devices on {len(os.sched_getaffinity(0))} cores"
        import torch

        return str(torch.get_num_threads())

    def train(self, x: Any, y: Any) -> None:
        """One pass over the rows."""
        self._model.fit(x, y, batch_size=GLOBAL_BATCH, verbose=0)


class MirroredFit(PlainFit):
    """The same line, on a model made in a strategy's scope."""

    def __init__(self, workload: Workload) -> None:
        with stratagem.MirroredStrategy().scope():
            super().__init__(workload)
