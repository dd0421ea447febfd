# SPDX-License-Identifier: Apache-2.0
"""Which of a model's steps the replicas can run on their own rows, and which need to see the whole global batch."""

from __future__ import annotations

from typing import Any

from keras import tree

from stratagem.keras_fit import _model

_OF_THE_STEP = ("compute_loss", "compute_metrics", "compute_loss_and_updates", "stateless_compute_loss")


def divides_by_rows(model: Any, kind: str) -> bool:
    """Whether the results of parts of a batch can be put together exactly: of "train", "test" or "predict" steps.

    Not where the user's own code sees the rows of a step together, and not where layers, metrics or losses combine
    rows in ways that sums don't.
    """
    if _model.overrides(model, f"{kind}_step") or _has_fixed_rows(model):
        return False
    if kind == "predict":
        return True
    if any(_model.overrides(model, method) for method in _OF_THE_STEP):
        return False
    if not all(_model.is_sum_over_rows(metric) for metric in _model.metrics(model)):
        return False
    return not any(getattr(layer, "synchronized", False) for layer in model._flatten_layers())


def _has_fixed_rows(model: Any) -> bool:
    """Whether the model was made for batches of one size, or keeps state for each of their rows."""
    inputs = tree.flatten(getattr(model, "inputs", None) or [])
    if any(tensor.shape and tensor.shape[0] is not None for tensor in inputs):
        return True
    return any(getattr(layer, "stateful", False) for layer in model._flatten_layers())
