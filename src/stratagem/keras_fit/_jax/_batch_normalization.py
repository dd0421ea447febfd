# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization in a step over the global batch: each replica's rows by their own statistics, or all together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras

from stratagem.data._split import share_of
from stratagem.keras_fit._jax import _trace
from stratagem.keras_fit._synchronized import call_unsynchronized


def call(original: Callable[..., Any], layer: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
    """`BatchNormalization.call`; in a replica's step Keras's own code sees the replica's rows, as it should."""
    step = _trace.global_step()
    if layer.synchronized:
        # All rows of the step are here, so Keras's statistics of one device are the synchronised ones.
        return call_unsynchronized(original, layer, inputs, training, mask)
    if step is None or step.num_replicas == 1 or not (training and layer.trainable) or inputs.shape[0] % step.rows:
        return original(layer, inputs, training=training, mask=mask)
    return _by_replica(step, original, layer, inputs, mask)


def _by_replica(step: _trace.GlobalStep, original: Callable[..., Any], layer: Any, inputs: Any, mask: Any) -> Any:
    """Keras's own call on each replica's rows; the moving statistics become the mean of the updates, by rows."""
    state = [variable for variable in layer.variables if not variable.trainable]
    given = [(variable, variable.value) for variable in layer.variables]

    def normalize(rows: Any, rows_mask: Any) -> tuple[Any, list[Any]]:
        with keras.StatelessScope(state_mapping=given) as scope:
            outputs = original(layer, rows, training=True, mask=rows_mask)
        return outputs, [scope.get_current_value(variable) for variable in state]

    # A layer may see several rows of its own for each of the batch, such as the steps of a sequence.
    per_row = inputs.shape[0] // step.rows
    full = share_of(0, step.num_replicas, step.rows).rows
    num_full = step.rows // full
    edge = num_full * full * per_row
    parts: list[Any] = []
    updates: list[tuple[float, list[Any]]] = []
    shape = (num_full, full * per_row)
    outputs, new = jax.vmap(normalize)(
        inputs[:edge].reshape(*shape, *inputs.shape[1:]),
        None if mask is None else mask[:edge].reshape(*shape, *mask.shape[1:]),
    )
    parts.append(outputs.reshape(edge, *outputs.shape[2:]))
    updates.append((num_full * full / step.rows, [value.mean(axis=0) for value in new]))
    if edge < inputs.shape[0]:
        outputs, new = normalize(inputs[edge:], None if mask is None else mask[edge:])
        parts.append(outputs)
        updates.append((1 - updates[0][0], new))
    for place, variable in enumerate(state):
        variable.assign(sum(part * new[place] for part, new in updates))
    return parts[0] if len(parts) == 1 else jax.numpy.concatenate(parts)
