# SPDX-License-Identifier: Apache-2.0
"""Training loops of users' own, run in the replicas' processes."""

from __future__ import annotations

from typing import Any

import numpy as np


def train(replicas: int, rows: int, sized: bool) -> dict[str, Any]:
    """TensorFlow's style: a data set, compute_average_loss, a penalty, optimizer.apply, strategy.reduce."""
    import keras

    import stratagem

    keras.utils.clear_session()
    strategy = stratagem.MirroredStrategy() if replicas > 1 else stratagem.OneDeviceStrategy("CPU:0")
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(rows, 6)).astype("float32"), draw.normal(size=(rows, 1)).astype("float32")
    weight = draw.uniform(size=rows).astype("float32")
    dataset = stratagem.ArrayDataset((x, y, weight), 12, shuffle=True, seed=4)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.02)
    # The engines draw different ones from one seed.
    model.set_weights([draw.normal(size=v.shape, scale=0.4) for v in model.weights])

    def loss_of(x: Any, y: Any, weight: Any) -> Any:
        losses = keras.ops.square(model(x) - y)[:, 0]
        data = stratagem.compute_average_loss(losses, weight, 12 if sized else None)
        penalty = sum(keras.ops.sum(keras.ops.square(kernel.value)) for kernel in model.trainable_variables)
        return data + stratagem.scale_regularization_loss(0.01 * penalty)

    def step(*batch: Any) -> Any:
        loss, gradients = stratagem.value_and_grad(loss_of, model.trainable_variables)(*batch)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    losses: list[float] = []
    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset(dataset):
            losses.append(float(strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)))
    return {"losses": losses, "weights": [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.weights]}
