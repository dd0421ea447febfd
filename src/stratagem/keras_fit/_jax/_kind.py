# SPDX-License-Identifier: Apache-2.0
"""Which of a model's steps the replicas can run on their own rows, and which need to see the whole global batch."""

from __future__ import annotations

from typing import Any

from stratagem.keras_fit import _model

_OF_THE_STEP = ("compute_loss", "compute_metrics", "compute_loss_and_updates", "stateless_compute_loss")


def divides_by_rows(model: Any, kind: str) -> bool:
    """Whether the results of parts of a batch can be put together exactly: of "train", "test" or "predict" steps.

    Not where the user's own code sees the rows of a step together, and not where layers, metrics or losses combine
    rows in ways that sums don't.
    """
    if _model.overrides(model, f"{kind}_step"):
        return False
    if kind == "predict":
        return True
    if any(_model.overrides(model, method) for method in _OF_THE_STEP):
        return False
    if not all(_model.is_sum_over_rows(metric) for metric in _model.metrics(model)):
        return False
    return not any(getattr(layer, "synchronized", False) for layer in model._flatten_layers())
