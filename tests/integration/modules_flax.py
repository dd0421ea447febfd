# SPDX-License-Identifier: Apache-2.0
"""Programs around modules of Flax NNX, run in the processes of jax's replicas."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines import compiling_quickly
from tests.integration.modules import BATCH, data


def _strategy(replicas: int) -> Any:
    import stratagem

    return stratagem.MirroredStrategy() if replicas > 1 else stratagem.OneDeviceStrategy("CPU:0")


def _state(*nodes: Any) -> dict[str, np.ndarray]:
    import jax
    from flax import nnx

    state = nnx.state(nodes, nnx.Not(nnx.RngKey))
    return {
        jax.tree_util.keystr(path): np.asarray(value) for path, value in jax.tree_util.tree_flatten_with_path(state)[0]
    }


def train(replicas: int, seed_of_process: bool = False) -> dict[str, Any]:
    """Two passes with Adam and a metric, and an evaluation; with `seed_of_process` only the first has these weights."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    import stratagem

    class Model(nnx.Module):
        """Two layers, the first of which is used twice, and one that is not."""

        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(6, 6, rngs=rngs), nnx.Linear(6, 1, rngs=rngs)])
            self.again = self.layers[0]
            self.unused = nnx.Linear(2, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            """The prediction."""
            return self.layers[1](jnp.tanh(self.again(jnp.tanh(self.layers[0](x)))))

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        losses = jnp.square(model(x) - y)[:, 0]
        return stratagem.compute_average_loss(losses), losses

    def train_step(model: Any, optimizer: Any, metric: Any, x: Any, y: Any) -> Any:
        (loss, losses), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model, x, y)
        gradients = stratagem.get_replica_context().all_reduce("SUM", gradients)
        optimizer.update(model, gradients)
        metric.update(loss=losses)
        return loss

    def test_step(model: Any, *, batch: Any) -> Any:
        return loss_of(model, *batch)[0]

    strategy = _strategy(replicas)
    seed = jax.process_index() if seed_of_process else 0
    with strategy.scope():
        model = Model(nnx.Rngs(seed))
        optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
        metric = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    x, y = data(4 * BATCH)
    losses = []
    with compiling_quickly():
        for _ in range(2):
            for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset((x, y), BATCH)):
                given = (model, optimizer, metric, *batch)
                losses.append(float(strategy.reduce("SUM", strategy.run(train_step, args=given), axis=None)))
                tested = strategy.run(test_step, args=(model,), kwargs={"batch": batch})
                losses.append(float(strategy.reduce("SUM", tested, axis=None)))
            losses.append(float(metric.compute()["loss"]))
    return {"losses": losses, "state": _state(model, optimizer, metric)}


def train_functionally(replicas: int) -> dict[str, Any]:
    """Flax's functional style: a state and optax's go into the step and come out of it."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    import stratagem

    strategy = _strategy(replicas)
    graph, state = nnx.split(nnx.Linear(6, 1, rngs=nnx.Rngs(0)))
    adam = optax.adam(0.02)
    moments: Any = adam.init(state)

    def step(state: Any, moments: Any, x: Any, y: Any) -> Any:
        def loss_of(state: Any) -> Any:
            return stratagem.compute_average_loss(jnp.square(nnx.merge(graph, state)(x) - y)[:, 0])

        loss, gradients = jax.value_and_grad(loss_of)(state)
        gradients = stratagem.get_replica_context().all_reduce("SUM", gradients)
        updates, moments = adam.update(gradients, moments, state)
        return loss, optax.apply_updates(state, updates), moments

    losses = []
    with compiling_quickly():
        for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset(data(4 * BATCH), BATCH)):
            loss, state, moments = strategy.run(step, args=(state, moments, *batch))
            losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    first = jax.tree.map(lambda one: strategy.experimental_local_results(one)[0], (state, moments))
    return {"losses": losses, "state": dict(enumerate(map(np.asarray, jax.tree.leaves(first))))}


def keep(replicas: int) -> dict[str, Any]:
    """What two runs leave of running statistics and counters, and what Dropout dropped in two equal pairs of runs."""
    import jax.numpy as jnp
    from flax import nnx

    import stratagem

    class Seen(nnx.Variable):
        """A type of variable of the program's own."""

    class Model(nnx.Module):
        """Statistics, draws, and a counter."""

        def __init__(self) -> None:
            self.norm = nnx.BatchNorm(6, momentum=0.9, rngs=nnx.Rngs(0))
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=3))
            self.steps = Seen(jnp.zeros((), jnp.int32))
            self.last = Seen(jnp.zeros(6))

        def __call__(self, x: Any) -> Any:
            """What Dropout makes of ones."""
            self.steps[...] += 1
            self.last[...] = x.mean(axis=0)
            self.norm(x)
            return self.drop(jnp.ones(64))

    strategy = _strategy(replicas)
    x, _ = data(16)

    def run() -> Any:
        with strategy.scope():
            model = Model()
        masks = []
        for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset(x, 8)):
            made = strategy.run(lambda model, x: model(x), args=(model, batch))
            masks.append([np.asarray(mask) for mask in strategy.experimental_local_results(made)])
        return masks, _state(model)

    (masks, state), (again, _) = run(), run()
    return {"masks": masks, "again": again, "state": state}


def refuse() -> dict[str, str]:
    """What is said about that which can't be done, by the name of the mistake."""
    import jax.numpy as jnp
    import optax
    from flax import nnx

    import stratagem

    strategy = _strategy(2)
    x, _ = data(4)

    class Model(nnx.Module):
        """One layer."""

        def __init__(self, rngs: Any) -> None:
            self.layer = nnx.Linear(6, 1, rngs=rngs)
            self.hidden = False

        def __call__(self, x: Any) -> Any:
            """The prediction."""
            return self.layer(x)

    def trained_alone(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.update(model, nnx.grad(lambda model: model(x).sum())(model))

    def sowing(model: Any, x: Any) -> Any:
        model.sow(nnx.Intermediate, "hidden_values", x)
        return model(x)

    def setting(model: Any, x: Any) -> Any:
        model.hidden = True
        return model(x)

    class Trainer:
        """Has its model in an attribute."""

        def __init__(self, model: Any) -> None:
            self.model = model

        def step(self, x: Any) -> Any:
            """Uses it."""
            return self.model(x)

        def step_of(self, model: Any, x: Any) -> Any:
            """Does not."""
            return model(x)

    with strategy.scope():
        model = Model(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: x[2 * context.replica_id_in_sync_group :][:2]
    )
    models = {"one": [model]}

    @stratagem.function
    def compiled(*given: Any) -> Any:
        return given

    @stratagem.function
    def around(x: Any) -> Any:
        return strategy.run(lambda model, x: model(x), args=(model, x))

    def helper(x: Any) -> Any:
        return model(x)

    said = {}
    for mistake, call in {
        "nothing": lambda: strategy.run(Trainer(model).step_of, args=(model, jnp.ones((2, 6)))),
        "closure": lambda: strategy.run(lambda x: model(x) + 1.0, args=(x,)),
        "container": lambda: strategy.run(lambda x: models["one"][0](x) + 1.0, args=(x,)),
        "helper": lambda: strategy.run(lambda x: helper(x) + 1.0, args=(x,)),
        "itself": lambda: strategy.run(model, args=(x,)),
        "method": lambda: strategy.run(model.__call__, args=(x,)),
        "attribute": lambda: strategy.run(Trainer(model).step, args=(x,)),
        "captured beside arguments": lambda: strategy.run(lambda other, x: model(x), args=(optimizer, x)),
        "sow": lambda: strategy.run(sowing, args=(model, x)),
        "set": lambda: strategy.run(setting, args=(model, x)),
        "welford": lambda: strategy.run(lambda metric: None, args=(nnx.metrics.Welford(),)),
        "function": lambda: compiled(model),
        "around": lambda: around(x),
        "not summed": lambda: strategy.run(trained_alone, args=(model, optimizer, rows)),
    }.items():
        try:
            call()
            said[mistake] = "nothing"
        except stratagem.errors.StratagemError as error:
            said[mistake] = f"{type(error).__name__}: {error}"
    return said
