# SPDX-License-Identifier: Apache-2.0
"""The model and the data of a workload, on whichever backend Keras has in this process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from _workloads import Workload

LOSS = "sparse_categorical_crossentropy"


def build(workload: Workload) -> Any:
    """The compiled model."""
    model = _mlp(workload) if len(workload.input_shape) == 1 else _mobilenet(workload)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=LOSS, metrics=["accuracy"])
    return model


def data(workload: Workload, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (rows, *input_shape) and labels (rows,)."""
    random = np.random.default_rng(0)
    inputs = random.random((rows, *workload.input_shape), dtype=np.float32)
    return inputs, random.integers(0, workload.classes, rows)


def _mlp(workload: Workload) -> Any:
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(4)]
    head = keras.layers.Dense(workload.classes, activation="softmax")
    return keras.Sequential([keras.Input(workload.input_shape), *layers, head])


def _mobilenet(workload: Workload) -> Any:
    make: Any = keras.applications.MobileNetV2  # its annotation refuses weights=None
    return make(input_shape=workload.input_shape, weights=None, classes=workload.classes)
