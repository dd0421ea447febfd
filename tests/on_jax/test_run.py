# SPDX-License-Identifier: Apache-2.0
"""`strategy.run` on jax: traced once, exact, and with what a training loop needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import stratagem
from stratagem.errors import ContextError, StratagemError, TracingError

pytestmark = [
    pytest.mark.timeout(120),
    # Keras's own variables, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(64, 6)).astype("float32"), RNG.integers(0, 3, 64)
BATCH = 16


def test_a_function_that_takes_elements_of_a_data_set_sees_each_of_them_once() -> None:
    strategy = stratagem.MirroredStrategy()
    numbers = np.arange(24, dtype="float32")
    dataset = strategy.experimental_distribute_dataset(stratagem.ArrayDataset(numbers, 8))

    def total(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(keras.ops.sum, args=(batch,)), axis=None)

    @stratagem.function
    def next_of(iterator: Any) -> Any:
        return total(next(iterator))

    @stratagem.function
    def whole_pass() -> Any:
        return sum(total(batch) for batch in dataset)

    iterator = iter(dataset)
    assert [float(next_of(iterator)) for _ in range(3)] == [28.0, 92.0, 156.0]
    assert [float(whole_pass()) for _ in range(2)] == [276.0, 276.0]
    iterator = iter(dataset)
    with pytest.raises(TracingError, match="inside a function that is traced once"):
        strategy.run(lambda: next(iterator))
    assert float(total(next(iterator))) == 28.0, "what was refused took nothing"


class Loop:
    """TensorFlow's custom training loop: a step function with model, optimizer and metrics.

    Args:
        strategy: What it runs on.
        layers: Of the model.
        optimizer: Of the model.
    """

    def __init__(self, strategy: Any, *layers: Any, optimizer: Any = None) -> None:
        self.strategy = strategy
        with strategy.scope():
            keras.utils.set_random_seed(8)
            hidden = layers or (keras.layers.Dense(8, activation="relu"),)
            self.model = keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(3)])
            self.optimizer = optimizer or keras.optimizers.Adam(0.01)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.mean_loss = keras.metrics.Mean()
            self.losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(self, x: Any, y: Any) -> Any:
        def loss_of(x: Any, y: Any) -> Any:
            logits = self.model(x, training=True)
            per_row = self.losses(y, logits)
            return keras.ops.sum(per_row) / BATCH, (logits, per_row)

        weights = self.model.trainable_variables
        ((loss, (logits, per_row)), gradients) = stratagem.value_and_grad(loss_of, weights, has_aux=True)(x, y)
        self.optimizer.apply(gradients, weights)
        self.accuracy.update_state(y, logits)
        self.mean_loss.update_state(per_row)
        return loss

    def rows(self, start: int) -> tuple[Any, Any]:
        replicas = self.strategy.num_replicas_in_sync
        share = BATCH // replicas
        made = self.strategy.experimental_distribute_values_from_function

        def of(array: Any) -> Callable[[Any], Any]:
            return lambda context: array[start + context.replica_id_in_sync_group * share :][:share]

        return made(of(X)), made(of(Y))

    def train(self, epochs: int = 2) -> dict[str, Any]:
        losses = [
            float(self.strategy.reduce("SUM", self.strategy.run(self.step, args=self.rows(start)), axis=None))
            for _ in range(epochs)
            for start in range(0, len(X), BATCH)
        ]
        return {
            "losses": losses,
            "weights": self.model.get_weights(),
            "accuracy": float(self.accuracy.result()),
            "mean_loss": float(self.mean_loss.result()),
        }


def on(replicas: int) -> Any:
    return stratagem.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])


def assert_alike(mine: dict[str, Any], theirs: dict[str, Any], tolerance: float = 5e-6) -> None:
    for name in ("losses", "accuracy", "mean_loss"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=0, atol=tolerance, err_msg=name)
    for weight, other in zip(mine["weights"], theirs["weights"], strict=True):
        np.testing.assert_allclose(weight, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("make", [None, lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)])
def test_a_custom_loop_gives_what_one_device_gives_metrics_too(make: Any, replicas: int) -> None:
    results = [Loop(on(count), optimizer=make and make()).train() for count in (1, replicas)]
    assert_alike(results[1], results[0])


def test_one_device_gives_what_plain_keras_gives() -> None:
    mine = Loop(on(1), optimizer=keras.optimizers.SGD(0.1)).train(epochs=1)
    keras.utils.set_random_seed(8)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    history = model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0).history
    np.testing.assert_allclose(mine["accuracy"], history["accuracy"][0], atol=1e-6)
    np.testing.assert_allclose(mine["mean_loss"], history["loss"][0], atol=1e-6)
    for weight, other in zip(mine["weights"], model.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=0, atol=1e-6)


def test_a_hundred_equal_calls_are_one_trace_and_one_compilation(strategy: Any) -> None:
    traces: list[int] = []
    weight = keras.Variable(0.0)

    def step(x: Any) -> Any:
        traces.append(1)
        weight.assign_add(1.0)
        return x * 2

    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group)
    )
    strategy.run(step, args=(values,))
    first = len(traces)
    for _ in range(99):
        result = strategy.run(step, args=(values,))
    assert len(traces) == first <= 2  # one to find the variables, one to compile
    assert [float(value) for value in result.values] == [0.0, 2.0, 4.0, 6.0]
    assert float(weight.value) == 100.0


def test_results_stay_on_the_devices_until_they_are_read(strategy: Any) -> None:
    result = strategy.run(lambda: stratagem.get_replica_context().replica_id_in_sync_group + 1)
    assert result.stack is not None
    assert int(strategy.reduce("SUM", result, axis=None)) == 10
    assert [int(value) for value in result.values] == [1, 2, 3, 4]


def test_statistics_of_batch_normalization_become_the_mean_of_the_replicas(strategy: Any) -> None:
    layer = keras.layers.BatchNormalization(momentum=0.5)
    layer.build((None, 6))

    def step(x: Any) -> Any:
        return layer(x, training=True)

    rows = strategy.experimental_distribute_values_from_function(
        lambda context: X[4 * context.replica_id_in_sync_group :][:4]
    )
    strategy.run(step, args=(rows,))
    means = np.mean([X[4 * i : 4 * i + 4].mean(axis=0) for i in range(4)], axis=0)
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.5 * means, atol=1e-6)


def test_replicas_drop_out_other_units_and_a_seed_repeats_them(strategy: Any) -> None:
    def draw() -> Any:
        layer = keras.layers.Dropout(0.5, seed=3)
        return strategy.run(lambda: layer(jnp.ones((32,)), training=True)).values

    first, second = draw(), draw()
    assert len({tuple(np.asarray(value)) for value in first}) == 4
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_value_read_before_a_run_can_be_read_after_it(strategy: Any) -> None:
    variable = keras.Variable(jnp.arange(3.0))
    before = variable.value

    def step() -> None:
        variable.assign_add(jnp.ones(3))

    for _ in range(3):
        strategy.run(step)
    np.testing.assert_array_equal(np.asarray(before), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(variable.numpy(), [3.0, 4.0, 5.0])


def test_what_is_assigned_between_runs_counts(strategy: Any) -> None:
    rate = keras.Variable(1.0)

    def step() -> Any:
        return rate * 2.0

    assert float(strategy.run(step).values[0]) == 2.0
    rate.assign(5.0)
    assert float(strategy.run(step).values[3]) == 10.0


def test_a_function_that_needs_a_replicas_number_as_a_python_number_is_told_what_to_do(strategy: Any) -> None:
    def step() -> int:
        if stratagem.get_replica_context().replica_id_in_sync_group == 0:
            return 1
        return 2

    with pytest.raises(StratagemError, match=r"test_run\.py"):
        strategy.run(step)


def test_loss_scaling_works_in_a_custom_loop() -> None:
    made = keras.optimizers.LossScaleOptimizer
    results = []
    for replicas in (1, 4):
        loop = Loop(on(replicas), optimizer=made(keras.optimizers.SGD(0.1), initial_scale=1.0))
        results.append(loop.train(epochs=1))
    assert_alike(results[1], results[0])


def test_merge_call_sees_all_replicas_and_updates_variables(strategy: Any) -> None:
    with strategy.scope():
        variable = keras.Variable(0.0)

    def merge(strategy: Any, value: Any) -> Any:
        total = strategy.reduce("SUM", value, axis=None)
        strategy.extended.update(variable, lambda v, t: v.assign(t), args=(total,))
        return total

    def step(x: Any) -> Any:
        return stratagem.get_replica_context().merge_call(merge, args=(x,))

    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group)
    )
    result = strategy.run(step, args=(values,))
    assert [float(value) for value in result.values] == [6.0] * 4
    assert float(variable.value) == 6.0


def test_collectives_inside_a_step_reach_all_replicas_and_are_differentiable(strategy: Any) -> None:
    weight = keras.Variable(2.0)

    def step(x: Any) -> Any:
        context = stratagem.get_replica_context()
        gathered = context.all_gather(x, axis=0)

        def loss(x: Any) -> Any:
            return context.all_reduce("SUM", weight.value * keras.ops.sum(x))

        value, (gradient,) = stratagem.value_and_grad(loss, [weight])(x)
        return gathered, value, gradient

    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.full((1,), context.replica_id_in_sync_group, np.float32)
    )
    gathered, value, gradient = strategy.run(step, args=(values,))
    for replica in range(4):
        np.testing.assert_array_equal(np.asarray(gathered.values[replica]), [0.0, 1.0, 2.0, 3.0])
        assert float(value.values[replica]) == 12.0
        # As in TensorFlow: the gradient of a sum over replicas is the sum of the replicas' gradients.
        assert float(gradient.values[replica]) == 4.0 * replica


def test_unused_variables_have_no_gradient() -> None:
    used, unused = keras.Variable(3.0), keras.Variable(1.0)
    value, gradients = stratagem.value_and_grad(lambda x: x * used.value**2, [used, unused])(2.0)
    assert (float(value), float(gradients[0]), gradients[1]) == (18.0, 12.0, None)


def test_a_function_around_run_and_reduce_is_compiled_as_one(strategy: Any) -> None:
    loop = Loop(strategy, optimizer=keras.optimizers.SGD(0.1))

    @stratagem.function
    def train_step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(loop.step, args=(x, y)), axis=None)

    losses = [float(train_step(*loop.rows(start))) for start in range(0, len(X), BATCH)]
    again = Loop(strategy, optimizer=keras.optimizers.SGD(0.1)).train(epochs=1)
    np.testing.assert_allclose(losses, again["losses"], rtol=0, atol=1e-6)


def test_the_state_lies_on_every_device_and_stays_there(strategy: Any) -> None:
    loop = Loop(strategy)
    loop.train(epochs=1)
    for variable in (*loop.model.variables, *loop.optimizer.variables, *loop.accuracy.variables):
        assert isinstance(variable.value, jax.Array)
        assert len(variable.value.sharding.device_set) == 4, variable.path


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "train_on_batch"])
def test_a_models_own_loop_inside_run_is_refused_and_leaves_the_model_as_it_was(strategy: Any, method: str) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.raises(ContextError, match=method):
        strategy.run(lambda: getattr(model, method)(X))
    for mine, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    model.fit(X, X[:, :1], batch_size=16, verbose=0)


def test_a_layer_that_is_frozen_between_two_runs_of_one_step_stays_as_it_is(strategy: Any) -> None:
    loop = Loop(strategy)
    rows = (X[:BATCH], Y[:BATCH])
    layer = loop.model.layers[0]
    strategy.run(loop.step, args=rows)
    layer.trainable = False
    frozen = np.array(layer.kernel)
    strategy.run(loop.step, args=rows)
    np.testing.assert_array_equal(layer.kernel, frozen)
    layer.trainable = True
    strategy.run(loop.step, args=rows)
    assert np.any(np.array(layer.kernel) != frozen)


def test_a_variable_made_inside_a_traced_function_is_refused_with_what_to_do(strategy: Any) -> None:
    with pytest.raises(TracingError, match=r"makes a variable\n.*once, outside of the function"):
        strategy.run(lambda: keras.Variable(1.0) + 1.0)
