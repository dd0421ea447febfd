# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own: stratagem run --cpu-devices 2 examples/custom_loop.py"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import stratagem

x = np.random.default_rng(0).standard_normal((960, 32), dtype="float32")
y = x[:, :10].argmax(axis=1)

strategy = stratagem.MirroredStrategy()
global_batch = 96
dataset = strategy.experimental_distribute_dataset(stratagem.ArrayDataset((x, y), global_batch))

keras.utils.set_random_seed(0)
with strategy.scope():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
    optimizer = keras.optimizers.Adam(0.01)


def loss_of(rows, labels):
    losses = keras.losses.sparse_categorical_crossentropy(labels, model(rows, training=True))
    # Divided by the rows of all replicas, so that the sum over replicas is the mean over the global batch.
    return stratagem.compute_average_loss(losses, global_batch_size=global_batch)


def step(rows, labels):
    loss, gradients = stratagem.value_and_grad(loss_of, model.trainable_variables)(rows, labels)
    optimizer.apply(gradients, model.trainable_variables)  # sums the gradients over replicas first
    return loss


# The chief prints; replica 0 is the chief.
is_chief = strategy.experimental_local_results(
    strategy.run(lambda: stratagem.get_replica_context().replica_id_in_sync_group == 0)
)[0]
for epoch in range(3):
    for batch in dataset:
        mean = strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)
    if is_chief:
        print(f"epoch {epoch}: loss of the last batch {float(mean):.4f}")
