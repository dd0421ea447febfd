# SPDX-License-Identifier: Apache-2.0
"""What Stratagem reads from a Keras model."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend.torch.trainer import TorchTrainer
from keras.src.trainers.trainer import Trainer

from stratagem.keras_fit._torch._metrics import flatten_metrics


def overrides(model: Any, method: str) -> bool:
    """Whether the model's class has its own version of one of Keras's step methods."""
    keras_own = [getattr(base, method) for base in (keras.Model, TorchTrainer, Trainer) if hasattr(base, method)]
    return getattr(type(model), method) not in keras_own


def metrics(model: Any) -> list[Any]:
    """The metrics that `fit` resets and reports, without containers."""
    return flatten_metrics(model.metrics)


def loss_trackers(model: Any) -> list[Any]:
    """The metrics that follow the loss: of the model, and of each output."""
    outputs = model._compile_loss.metrics if model._compile_loss is not None else []
    return [model._loss_tracker, *outputs] if model._loss_tracker is not None else list(outputs)


def replica_variables(model: Any) -> list[Any]:
    """Weights that layers change by themselves, such as moving statistics; frozen weights are not among them."""
    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        for variable in layer._non_trainable_variables:
            found[id(variable)] = variable
    return list(found.values())
