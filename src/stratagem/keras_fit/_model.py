# SPDX-License-Identifier: Apache-2.0
"""What Stratagem reads from a Keras model, whatever the backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem._core.values import ReplicaVariable

_KERAS = "keras.src."


def overrides(model: Any, method: str) -> bool:
    """Whether the model's class has its own version of one of Keras's methods."""
    return not getattr(type(model), method).__module__.startswith(_KERAS)


def metrics(model: Any) -> list[Any]:
    """The metrics that `fit` resets and reports, without containers."""
    return flatten_metrics(model.metrics)


def flatten_metrics(metrics: Sequence[Any]) -> list[Any]:
    """The metrics with the containers among them opened, each once."""
    flat: dict[int, Any] = {}
    for metric in metrics:
        parts = metric.metrics if type(metric).__module__ == "keras.src.trainers.compile_utils" else [metric]
        flat.update({id(part): part for part in parts})
    return list(flat.values())


def is_sum_over_rows(metric: Any) -> bool:
    """Whether the metric's state is a sum over rows, so that the states of parts of a batch add up."""
    if not type(metric).update_state.__module__.startswith("keras.src.metrics."):
        return False
    function = getattr(metric, "_fn", None)
    # A user's function may give one number for the batch, which can't be averaged over replicas.
    return function is None or getattr(function, "__module__", "").startswith(_KERAS)


def loss_trackers(model: Any) -> list[Any]:
    """The metrics that follow the loss: of the model, and of each output."""
    outputs = model._compile_loss.metrics if model._compile_loss is not None else []
    return [model._loss_tracker, *outputs] if model._loss_tracker is not None else list(outputs)


def replica_variables(model: Any) -> list[Any]:
    """Weights that layers change by themselves, such as moving statistics, and that are to be equal on all replicas.

    Frozen weights are not among them, nor `stratagem.Variable`s, which see to their copies themselves.
    """
    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        for variable in layer._non_trainable_variables:
            if not isinstance(variable, ReplicaVariable):
                found[id(variable)] = variable
    return list(found.values())
