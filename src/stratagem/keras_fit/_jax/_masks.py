# SPDX-License-Identifier: Apache-2.0
"""Masks for metrics: Keras hangs a mask on the predictions, and on jax it falls off on the way out of the gradient."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from keras import tree
from keras.src import backend

from stratagem.keras_fit._jax import _trace

_THREAD = threading.local()


def compute_loss_and_updates(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """`JAXTrainer.compute_loss_and_updates`, which returns the predictions; their masks are remembered."""
    loss, (unscaled_loss, y_pred, *state) = original(model, *args, **kwargs)
    # Masks come from inputs and are not differentiated, so they are good outside too.
    _THREAD.masks = [backend.get_keras_mask(part) for part in tree.flatten(y_pred)]
    return loss, (unscaled_loss, y_pred, *state)


def update_metrics_variables(
    original: Callable[..., Any],
    model: Any,
    metrics_variables: Any,
    unscaled_loss: Any,
    x: Any,
    y: Any,
    y_pred: Any,
    sample_weight: Any,
) -> Any:
    """`JAXTrainer._update_metrics_variables` with the masks that the predictions had."""
    masks, _THREAD.masks = getattr(_THREAD, "masks", None), None
    if masks and (_trace.replica_step() or _trace.global_step()):
        for part, mask in zip(tree.flatten(y_pred), masks, strict=True):
            if mask is not None:
                backend.set_keras_mask(part, mask)
    return original(model, metrics_variables, unscaled_loss, x, y, y_pred, sample_weight)
