# SPDX-License-Identifier: Apache-2.0
"""What a user of jax has without Stratagem: a loop by hand around shard_map, and Keras's own DataParallel."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import jax
import keras
import numpy as np
from _with_keras import PlainFit
from _workloads import GLOBAL_BATCH, Workload
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem._core import env

# With more steps on their way, XLA's collectives can starve on CPU devices.
_STEPS_IN_FLIGHT = 8


def _devices() -> list[jax.Device]:
    """As many CPU devices as this process is to have; starts jax."""
    jax.config.update("jax_num_cpu_devices", env.cpu_devices())
    return jax.devices()


class DataParallelFit(PlainFit):
    """`fit` under `keras.distribution.DataParallel`."""

    def __init__(self, workload: Workload) -> None:
        _devices()
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        super().__init__(workload)


class HandLoop(PlainFit):
    """A step that a user writes: shard_map over the devices, jitted, with Keras's model, loss and Adam."""

    def __init__(self, workload: Workload) -> None:
        mesh = Mesh(np.array(_devices()), ("replica",))
        super().__init__(workload)
        self._model.optimizer.build(self._model.trainable_variables)
        self._rows = NamedSharding(mesh, PartitionSpec("replica"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        variables = (
            self._model.trainable_variables,
            self._model.non_trainable_variables,
            self._model.optimizer.variables,
        )
        weights, others, optimizer = ([variable.value for variable in part] for part in variables)
        # Correct rows, and the sum of losses, since the pass began.
        zeros = (np.zeros((), np.float32), np.zeros((), np.float32))
        # Copies: the step gives these buffers away, and the model's are to stay.
        copies = jax.tree.map(np.array, (weights, others, optimizer, zeros))
        self._state = jax.device_put(copies, everywhere)
        rows = PartitionSpec("replica")
        mapped = jax.shard_map(
            partial(_step, self._model),
            mesh=mesh,
            in_specs=(PartitionSpec(), rows, rows),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        self._step = jax.jit(mapped, donate_argnums=0)

    def train(self, x: Any, y: Any) -> None:
        """One pass over the rows."""
        waiting: deque[Any] = deque()
        for start in range(0, len(x), GLOBAL_BATCH):
            rows = slice(start, start + GLOBAL_BATCH)
            inputs, labels = jax.device_put((x[rows], y[rows].astype(np.int32)), self._rows)
            loss, self._state = self._step(self._state, inputs, labels)
            waiting.append(loss)
            if len(waiting) > _STEPS_IN_FLIGHT:
                waiting.popleft().block_until_ready()
        jax.block_until_ready(self._state)


def _step(model: Any, state: Any, x: Any, y: Any) -> Any:
    weights, others, optimizer, (correct, total) = state

    def loss_of(weights: Any) -> Any:
        outputs, after = model.stateless_call(weights, others, x, training=True)
        losses: Any = keras.losses.sparse_categorical_crossentropy(y, outputs)
        return losses.mean(), (outputs, after)

    (loss, (outputs, others)), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
    gradients, others, loss = lax.pmean((gradients, others, loss), "replica")
    right = lax.psum((outputs.argmax(-1) == y).astype(np.float32).sum(), "replica")
    weights, optimizer = model.optimizer.stateless_apply(optimizer, gradients, weights)
    return loss, (weights, others, optimizer, (correct + right, total + loss))
