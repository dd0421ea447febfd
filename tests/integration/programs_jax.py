# SPDX-License-Identifier: Apache-2.0
"""Programs that only a user of JAX writes: steps in which all state goes in and comes out."""

from __future__ import annotations

from typing import Any

from tests.integration.programs import (
    Scope,
    numbers,
    program_of,
    results_of,
    trained_with_own_step_synchronised,
    trained_with_own_steps,
)


@program_of("jax")
def own_stateless_train_and_test_step(scope: Scope) -> dict[str, Any]:
    import jax
    import keras
    from keras import ops

    class Own(keras.Model):
        """The custom steps of Keras's guide for JAX."""

        def loss_and_updates(self, trainable: Any, non_trainable: Any, x: Any, y: Any, training: bool) -> Any:
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=training)
            loss = ops.mean(ops.square(y - y_pred)) + ops.mean(ops.abs(y_pred))
            return loss, (y_pred, non_trainable)

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, non_trainable, optimizer, metrics = state
            x, y = data
            differentiate = jax.value_and_grad(self.loss_and_updates, has_aux=True)
            (loss, (y_pred, non_trainable)), gradients = differentiate(trainable, non_trainable, x, y, True)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
            logs, metrics = self.updated(metrics, loss, y, y_pred)
            return {**logs, "twice": 2 * loss}, (trainable, non_trainable, optimizer, metrics)

        def test_step(self, state: Any, data: Any) -> Any:
            trainable, non_trainable, metrics = state
            x, y = data
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=False)
            logs, metrics = self.updated(metrics, ops.mean(ops.square(y - y_pred)), y, y_pred)
            return logs, (trainable, non_trainable, metrics)

        def updated(self, variables: Any, loss: Any, y: Any, y_pred: Any) -> Any:
            logs, new = {}, []
            for metric in self.metrics:
                mine = variables[len(new) : len(new) + len(metric.variables)]
                arguments = (loss,) if metric.name == "loss" else (y, y_pred)
                mine = metric.stateless_update_state(mine, *arguments)
                logs[metric.name] = metric.stateless_result(mine)
                new += mine
            return logs, new

        @property
        def metrics(self) -> list[Any]:
            return [self.tracker, self.error]

    return trained_with_own_steps(scope, Own)


@program_of("jax")
def own_stateless_steps_around_those_of_keras(scope: Scope) -> dict[str, Any]:
    import keras

    class Around(keras.Model):
        """Calls Keras's steps and adds to their logs."""

        def train_step(self, state: Any, data: Any) -> Any:
            logs, state = super().train_step(state, data)
            return {**logs, "rate": keras.ops.convert_to_tensor(0.25), "rows": len(data[0]) * 0 + 3}, state

        def test_step(self, state: Any, data: Any) -> Any:
            return super().test_step(state, data)

    x, y = numbers(35)
    keras.utils.set_random_seed(6)
    with scope():
        inputs = keras.Input((6,))
        model = Around(inputs, keras.layers.Dense(2, kernel_regularizer="l2")(inputs))
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=(x[:13], y[:13]))
    return results_of(model, history, evaluate=model.evaluate(x, y, batch_size=9, verbose=0, return_dict=True))


@program_of("jax")
def own_stateless_train_step_with_synchronised_batch_normalization(scope: Scope) -> dict[str, Any]:
    import jax
    import keras
    from keras import ops

    class Own(keras.Model):
        """A mean over the rows of the step."""

        def loss_and_updates(self, trainable: Any, non_trainable: Any, x: Any, y: Any) -> Any:
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
            return ops.mean(ops.square(y - y_pred)), non_trainable

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, non_trainable, optimizer, metrics = state
            differentiate = jax.value_and_grad(self.loss_and_updates, has_aux=True)
            (loss, non_trainable), gradients = differentiate(trainable, non_trainable, *data)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
            return {"loss": loss}, (trainable, non_trainable, optimizer, metrics)

    return trained_with_own_step_synchronised(scope, Own)
