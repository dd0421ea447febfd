# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling inside a step, without the copies that Keras makes of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stratagem.keras_fit import _step


def transpose_spatial_inputs(original: Callable[[Any], Any], inputs: torch.Tensor) -> torch.Tensor:
    """Keras's channels-last to channels-first of 2-D images, as a view.

    Keras copies the result into the channels-first layout, and the convolution then copies it back.
    """
    step = _step.current()
    if step is None or not step.fast_paths or inputs.ndim != 4 or inputs.device.type == "meta":
        return original(inputs)
    return inputs.permute(0, 3, 1, 2)
