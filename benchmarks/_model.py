# SPDX-License-Identifier: Apache-2.0
"""The model and the data of a workload, on whichever backend Keras has in this process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from _workloads import Workload

LOSS = "sparse_categorical_crossentropy"
_WORDS = 1000


def build(workload: Workload) -> Any:
    """The compiled model."""
    model = _MODELS[workload.model](workload)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=LOSS, metrics=["accuracy"])
    return model


def data(workload: Workload, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (rows, *input_shape) and labels (rows,)."""
    random = np.random.default_rng(0)
    labels = random.integers(0, workload.classes, rows)
    if workload.model == "transformer":
        return random.integers(0, _WORDS, (rows, *workload.input_shape), dtype=np.int32), labels
    return random.random((rows, *workload.input_shape), dtype=np.float32), labels


def _mlp(workload: Workload) -> Any:
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(4)]
    head = keras.layers.Dense(workload.classes, activation="softmax")
    return keras.Sequential([keras.Input(workload.input_shape), *layers, head])


def _mobilenet(workload: Workload) -> Any:
    make: Any = keras.applications.MobileNetV2  # its annotation refuses weights=None
    return make(input_shape=workload.input_shape, weights=None, classes=workload.classes)


def _transformer(workload: Workload) -> Any:
    width, heads = 128, 4
    tokens = keras.Input(workload.input_shape, dtype="int32")
    x: Any = keras.layers.Embedding(_WORDS, width)(tokens)
    for _ in range(2):
        normal = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(heads, width // heads)(normal, normal)
        normal = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(normal))
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.Model(tokens, keras.layers.Dense(workload.classes, activation="softmax")(x))


_MODELS = {"mlp": _mlp, "mobilenet": _mobilenet, "transformer": _transformer}
