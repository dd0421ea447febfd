# SPDX-License-Identifier: Apache-2.0
"""Keras's own steps, run by every replica on its rows; what leaves them is that of the global batch, on all replicas.

Only for batches that divide evenly, and for models whose losses and metrics are sums over rows: `_kind.py` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from keras.utils import unpack_x_y_sample_weight

from stratagem.engines.jax._mesh import AXIS
from stratagem.keras_fit import _model
from stratagem.keras_fit._jax import _trace
from stratagem.keras_fit._jax._losses import WholeBatchNeeded
from stratagem.keras_fit._rows import num_rows


def train(model: Any, num_replicas: int, state: Any, data: Any) -> tuple[Any, Any]:
    """One training step; to be mapped over the replicas.

    Returns:
        The logs of the global batch, and the new state, both equal on all replicas.
    """
    trainable, non_trainable, optimizer, metrics = state
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    gradient_of = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    with _trace.tracing(_trace.ReplicaStep(num_replicas, num_rows(data))):
        (_, aux), gradients = gradient_of(
            trainable,
            non_trainable,
            _zeros(metrics),
            x,
            y,
            sample_weight,
            training=True,
            optimizer_variables=optimizer,
        )
        loss, y_pred, new_non_trainable, added = aux
        _, added = model._update_metrics_variables(added, loss, x, y, y_pred, sample_weight)
    non_trainable, metrics = _joined(model, num_replicas, non_trainable, new_non_trainable, metrics, added)
    gradients = lax.psum(gradients, AXIS)
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    return _logs(model, metrics), (trainable, non_trainable, optimizer, metrics)


def test(model: Any, num_replicas: int, state: Any, data: Any) -> tuple[Any, Any]:
    """One test step; to be mapped over the replicas."""
    trainable, non_trainable, metrics = state
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    with _trace.tracing(_trace.ReplicaStep(num_replicas, num_rows(data))):
        _, (loss, y_pred, new_non_trainable, added) = model.compute_loss_and_updates(
            trainable, non_trainable, _zeros(metrics), x, y, sample_weight, training=False
        )
        if loss.ndim > 0:  # without a reduction it is no term of a sum
            raise WholeBatchNeeded
        _, added = model._update_metrics_variables(added, loss, x, y, y_pred, sample_weight)
    non_trainable, metrics = _joined(model, num_replicas, non_trainable, new_non_trainable, metrics, added)
    return _logs(model, metrics), (trainable, non_trainable, metrics)


def predict(model: Any, num_replicas: int, state: Any, data: Any) -> tuple[Any, Any]:
    """One prediction step; to be mapped over the replicas. The outputs are those of this replica's rows."""
    with _trace.tracing(_trace.ReplicaStep(num_replicas, num_rows(data))):
        outputs, after = model.predict_step(state, data)
    trainable, before = state
    # Layers that draw in prediction too draw anew for the next batch; moving statistics stay.
    kept = [old if jnp.issubdtype(old.dtype, jnp.floating) else new for old, new in zip(before, after, strict=True)]
    return outputs, (trainable, kept)


def _zeros(values: Sequence[Any]) -> list[Any]:
    return [jnp.zeros_like(value) for value in values]


def _joined(
    model: Any, num_replicas: int, before: Sequence[Any], after: Sequence[Any], metrics: Sequence[Any], added: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The non-trainable variables and the metrics after a step, from what every replica's rows did to them."""
    changing = {id(variable) for variable in _model.replica_variables(model)}
    places = [
        place
        for place, variable in enumerate(model.non_trainable_variables)
        if id(variable) in changing and jnp.issubdtype(before[place].dtype, jnp.floating)
    ]
    totals = {id(tracker.total) for tracker in _model.loss_trackers(model)}
    # A tracker adds loss times rows. A replica's loss is its term of the global one, which counts once for every row.
    added = [
        value * num_replicas if id(variable) in totals else value
        for variable, value in zip(model.metrics_variables, added, strict=True)
    ]
    moved = [(after[place] - before[place]) / num_replicas for place in places]
    summed = _sum_packed([*moved, *added])
    non_trainable = list(after)
    for place, move in zip(places, summed, strict=False):
        non_trainable[place] = before[place] + move
    return non_trainable, [old + new for old, new in zip(metrics, summed[len(places) :], strict=True)]


def _sum_packed(values: Sequence[Any]) -> list[Any]:
    """The sums over replicas, by one message a dtype: there may be hundreds of small ones."""
    by_dtype: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        by_dtype.setdefault(value.dtype, []).append(place)
    summed: list[Any] = [None] * len(values)
    for places in by_dtype.values():
        total = lax.psum(jnp.concatenate([values[place].ravel() for place in places]), AXIS)
        start = 0
        for place in places:
            stop = start + values[place].size
            summed[place] = total[start:stop].reshape(values[place].shape)
            start = stop
    return summed


def _logs(model: Any, metrics: Sequence[Any]) -> Any:
    with keras.StatelessScope(state_mapping=list(zip(model.metrics_variables, metrics, strict=True))):
        return model.get_metrics_result()
