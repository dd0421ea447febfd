# SPDX-License-Identifier: Apache-2.0
"""Functional JAX on several replicas: stratagem run --backend jax --cpu-devices 2 examples/custom_loop_jax.py"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

import stratagem

digits, labels = load_digits(return_X_y=True)
x, y = (digits / 16).astype("float32"), labels.astype("int32")
batches = [(x[i : i + 128], y[i : i + 128]) for i in range(0, 1536, 128)]

strategy = stratagem.MirroredStrategy()


def first_parameters():
    first, second = jax.random.split(jax.random.key(0), 2)
    hidden, output = jax.random.normal(first, (64, 64)) / 8, jax.random.normal(second, (64, 10)) / 8
    return {"hidden": (hidden, jnp.zeros(64)), "output": (output, jnp.zeros(10))}


def predict(parameters, rows):
    kernel, bias = parameters["hidden"]
    hidden = jax.nn.relu(rows @ kernel + bias)
    kernel, bias = parameters["output"]
    return hidden @ kernel + bias


def loss_of(parameters, rows, targets):
    losses = -jnp.take_along_axis(jax.nn.log_softmax(predict(parameters, rows)), targets[:, None], axis=1)
    # Divided by the rows of all replicas, so that the sum over replicas is the mean over the global batch.
    return stratagem.compute_average_loss(losses)


def train_step(parameters, rows, targets):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, rows, targets)
    gradients = stratagem.get_replica_context().all_reduce("SUM", gradients)
    return loss, jax.tree.map(lambda value, gradient: value - 0.5 * gradient, parameters, gradients)


parameters = first_parameters()
for epoch in range(5):
    for batch in strategy.experimental_distribute_dataset(batches):
        loss, parameters = strategy.run(train_step, args=(parameters, *batch))
    print(f"epoch {epoch}: loss of the last batch {float(strategy.reduce('SUM', loss, axis=None)):.4f}")
# Every replica has the same.
trained = jax.tree.map(lambda value: strategy.experimental_local_results(value)[0], parameters)

# The same on one device, by the same function.
alone = first_parameters()
for _ in range(5):
    for batch in batches:
        _, alone = train_step(alone, *batch)
accuracy = jnp.mean(predict(trained, x[1536:]).argmax(axis=1) == y[1536:])
differences = jax.tree.map(lambda mine, theirs: float(jnp.abs(mine - theirs).max()), trained, alone)
difference = max(jax.tree.leaves(differences))
print(f"accuracy on held back digits {accuracy:.3f}")
print(f"largest difference of a weight from training on one device {difference:.1e}")
