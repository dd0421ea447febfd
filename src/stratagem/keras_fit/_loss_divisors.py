# SPDX-License-Identifier: Apache-2.0
"""What Keras divides by when it makes one number of the losses of rows."""

from __future__ import annotations

from typing import Any, Final

from keras.src.losses import loss as keras_loss

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")

ROWS: Final = object()


def divisor_of(values: Any, sample_weight: Any, mask: Any, reduction: str | None) -> Any:
    """None for a sum, `ROWS` for a mean over rows, else the weights or the mask whose sum Keras divides by."""
    if reduction not in _MEANS:
        return None
    if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
        return keras_loss.apply_mask(sample_weight, mask, dtype=values.dtype, reduction=reduction)
    return ROWS if mask is None else mask
