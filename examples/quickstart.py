# SPDX-License-Identifier: Apache-2.0
"""The smallest whole program: stratagem run --cpu-devices 2 examples/quickstart.py"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import stratagem

x = np.random.default_rng(0).standard_normal((1000, 32), dtype="float32")
y = x[:, :10].argmax(axis=1)

strategy = stratagem.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")

with strategy.scope():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

model.fit(x, y, batch_size=100, epochs=3)
