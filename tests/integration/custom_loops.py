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
        error, auc = keras.metrics.MeanSquaredError(), keras.metrics.AUC(num_thresholds=11)
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
        predicted = model(batch[0])
        error.update_state(batch[1], predicted, batch[2])
        auc.update_state(batch[1] > 0, keras.ops.sigmoid(predicted))
        return loss

    losses: list[float] = []
    metrics: list[float] = []
    for _ in range(2):
        error.reset_state()
        for batch in strategy.experimental_distribute_dataset(dataset):
            losses.append(float(strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)))
            metrics.append(float(error.result()))
        metrics.append(float(auc.result()))
    losses += metrics
    return {"losses": losses, "weights": [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.weights]}


def _regression(rows: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(rows, 6)).astype("float32"), draw.normal(size=(rows, 1)).astype("float32")
    weights = [draw.normal(size=shape, scale=0.4).astype("float32") for shape in ((6, 5), (5,), (5, 1), (1,))]
    return x, y, weights


def train_with_backward(replicas: int, rows: int) -> dict[str, Any]:
    """PyTorch's style around a Keras model: loss.backward(), then the Keras optimizer."""
    import keras
    import torch

    import stratagem

    keras.utils.clear_session()
    strategy = stratagem.MirroredStrategy() if replicas > 1 else stratagem.OneDeviceStrategy("CPU:0")
    x, y, weights = _regression(rows)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.set_weights(weights)

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss = stratagem.compute_average_loss((model(x) - y).square()[:, 0])
        loss.backward()
        with torch.no_grad():
            optimizer.apply([variable.value.grad for variable in model.trainable_variables], model.trainable_variables)
        return loss.detach()

    return _passes(strategy, step, x, y, lambda: [keras.ops.convert_to_numpy(v) for v in model.weights])


def train_module(replicas: int, rows: int) -> dict[str, Any]:
    """Plain PyTorch around a module that is made outside the scope: the gradients are summed over replicas by hand."""
    import torch

    import stratagem

    strategy = stratagem.MirroredStrategy() if replicas > 1 else stratagem.OneDeviceStrategy("CPU:0")
    x, y, weights = _regression(rows)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(value.T if value.ndim == 2 else value))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = stratagem.compute_average_loss((module(x) - y).square()[:, 0])
        loss.backward()
        parameters = list(module.parameters())
        context = stratagem.get_replica_context()
        for parameter, total in zip(
            parameters, context.all_reduce("SUM", [one.grad for one in parameters]), strict=True
        ):
            parameter.grad = total
        optimizer.step()
        return loss.detach()

    return _passes(strategy, step, x, y, lambda: [p.detach().numpy().copy() for p in module.parameters()])


def train_functionally(replicas: int, rows: int) -> dict[str, Any]:
    """JAX's style: parameters go into the step and come out of it."""
    import jax
    import jax.numpy as jnp

    import stratagem

    strategy = stratagem.MirroredStrategy() if replicas > 1 else stratagem.OneDeviceStrategy("CPU:0")
    x, y, weights = _regression(rows)

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        kernel, bias, last, offset = parameters
        predicted = jnp.tanh(x @ kernel + bias) @ last + offset
        return stratagem.compute_average_loss(jnp.square(predicted - y)[:, 0])

    def step(parameters: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        gradients = stratagem.get_replica_context().all_reduce("SUM", gradients)
        return loss, [value - 0.05 * gradient for value, gradient in zip(parameters, gradients, strict=True)]

    parameters: Any = [jnp.asarray(weight) for weight in weights]
    losses: list[float] = []
    for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset((x, y), 12)):
        loss, parameters = strategy.run(step, args=(parameters, *batch))
        losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return {
        "losses": losses,
        "weights": [np.asarray(strategy.experimental_local_results(one)[0]) for one in parameters],
    }


def _passes(strategy: Any, step: Any, x: Any, y: Any, weights: Any) -> dict[str, Any]:
    import stratagem

    losses = [
        float(strategy.reduce("SUM", strategy.run(step, args=batch), axis=None))
        for _ in range(2)
        for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset((x, y), 12))
    ]
    return {"losses": losses, "weights": weights()}


MISTAKES = {
    "right": "are those of one device",
    "mean": "your loss is {n} times too large: each replica's is the mean over its own rows",
    "twice": "your gradients are {n} times too large: they are summed over replicas twice",
    "penalty": "a part of your loss counts once for each replica",
    "divided": "your loss is {n} times too small: it is divided by the number of replicas as well",
}


def check(mistake: str) -> dict[str, Any]:
    """What `check_gradients` says of a step function with a mistake."""
    import keras

    import stratagem

    keras.utils.clear_session()
    strategy = stratagem.MirroredStrategy()
    x, y, weights = _regression(16)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.05)
        error = keras.metrics.MeanSquaredError()
    model.set_weights(weights)

    def loss_of(x: Any, y: Any) -> Any:
        losses = keras.ops.square(model(x) - y)[:, 0]
        if mistake == "mean":
            return keras.ops.mean(losses)
        loss = stratagem.compute_average_loss(losses)
        if mistake == "divided":
            loss = loss / strategy.num_replicas_in_sync
        if mistake == "penalty":
            loss = loss + 0.1 * keras.ops.sum(keras.ops.square(model.trainable_variables[0].value))
        return loss

    def step(x: Any, y: Any) -> Any:
        loss, gradients = stratagem.value_and_grad(loss_of, model.trainable_variables)(x, y)
        if mistake == "twice":
            gradients = stratagem.get_replica_context().all_reduce("SUM", gradients)
        optimizer.apply(gradients, model.trainable_variables)
        error.update_state(y, model(x))
        return loss

    report = strategy.check_gradients(step, (x, y), variables=error.variables)
    after = [np.asarray(keras.ops.convert_to_numpy(value)) for value in model.weights]
    return {
        "ok": report.ok,
        "text": str(report),
        "unchanged": all(np.array_equal(mine, given) for mine, given in zip(after, weights, strict=True))
        and not any(float(value.value.sum()) for value in error.variables),
    }
