# SPDX-License-Identifier: Apache-2.0
"""`BatchNormalization(synchronized=True)`, which Keras refuses on every backend but TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def init(original: Callable[..., None], layer: Any, *args: Any, synchronized: bool = False, **kwargs: Any) -> None:
    """Stands in for `BatchNormalization.__init__`; inside a step we provide what was asked for."""
    original(layer, *args, **kwargs)
    layer.synchronized = synchronized


def call_unsynchronized(original: Callable[..., Any], layer: Any, inputs: Any, training: bool | None, mask: Any) -> Any:
    """Keras's own `BatchNormalization.call`, over the rows that it is given."""
    if not layer.synchronized:
        return original(layer, inputs, training=training, mask=mask)
    layer.synchronized = False
    try:
        return original(layer, inputs, training=training, mask=mask)
    finally:
        layer.synchronized = True
