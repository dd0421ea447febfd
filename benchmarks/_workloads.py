# SPDX-License-Identifier: Apache-2.0
"""What the contestants train: a model and the shape of its batches. No framework is loaded here."""

from __future__ import annotations

from dataclasses import dataclass

GLOBAL_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model to train.

    Attributes:
        title: For the reader.
        model: "mlp", "mobilenet" or "transformer".
        input_shape: Of one row.
        classes: How many the model tells apart.
        steps: Of one round, unless the command line says otherwise: some seconds' worth, so that what a call of
            `fit` costs once is small beside them.
    """

    title: str
    model: str
    input_shape: tuple[int, ...]
    classes: int
    steps: int


WORKLOADS = {
    "mobilenet96": Workload(
        title="MobileNetV2, 96 x 96", model="mobilenet", input_shape=(96, 96, 3), classes=2, steps=8
    ),
    "mobilenet224": Workload(
        title="MobileNetV2, 224 x 224", model="mobilenet", input_shape=(224, 224, 3), classes=2, steps=2
    ),
    "mlp": Workload(title="MLP of 4 x 1024", model="mlp", input_shape=(1024,), classes=10, steps=30),
    "transformer": Workload(
        title="transformer: 2 blocks, width 128, 64 tokens",
        model="transformer",
        input_shape=(64,),
        classes=10,
        steps=30,
    ),
}
