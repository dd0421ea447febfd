# SPDX-License-Identifier: Apache-2.0
"""More training programs: losses, layers, optimizers, callbacks and steps of the user's own."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from tests.integration.programs import (
    Scope,
    classes,
    classifier,
    numbers,
    program,
    program_of,
    regressor,
    results_of,
    trained_with_own_step_synchronised,
    trained_with_own_steps,
)


def _losses() -> dict[str, Any]:
    import keras
    from keras import ops

    def mean_of_everything(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_true - y_pred))

    def per_row(y_true: Any, y_pred: Any) -> Any:
        return ops.sum(ops.abs(y_true - y_pred), axis=-1)

    def correlation(y_true: Any, y_pred: Any) -> Any:
        true, pred = y_true - ops.mean(y_true, axis=0), y_pred - ops.mean(y_pred, axis=0)
        return 1 - ops.sum(true * pred) / ops.sqrt(ops.sum(true**2) * ops.sum(pred**2) + 1e-6)

    class Huber(keras.losses.Loss):
        """A loss class of the user's own."""

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return ops.mean(ops.log(ops.cosh(y_pred - y_true)), axis=-1)

    mse = keras.losses.MeanSquaredError
    return {
        "sum": mse(reduction="sum"),
        "mean": mse(reduction="mean"),
        "sum_over_batch_size": mse(reduction="sum_over_batch_size"),
        "mean_with_sample_weight": mse(reduction="mean_with_sample_weight"),
        "mean_of_everything": mean_of_everything,
        "per_row": per_row,
        "correlation": correlation,
        "class": Huber(),
        "class_sum": Huber(reduction="sum"),
    }


@program
def every_reduction_and_custom_losses(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = numbers(35)
    results: dict[str, Any] = {}
    for name, loss in _losses().items():
        rate = 0.002 if "sum" in name else 0.05
        model = regressor(scope, loss, optimizer=keras.optimizers.SGD(rate), metrics=["mae"])
        weights = np.linspace(0.1, 2, len(x), dtype="float32") if name == "mean_with_sample_weight" else None
        history = model.fit(x, y, sample_weight=weights, batch_size=8, epochs=2, verbose=0, shuffle=False)
        results[name] = results_of(model, history, evaluate=model.evaluate(x, y, batch_size=9, verbose=0))
    return results


@program
def a_loss_per_row_without_reduction_in_evaluation(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = numbers(35)
    model = regressor(scope, keras.losses.MeanSquaredError(reduction="none"), metrics=["mae"])
    # In fit, Keras on torch refuses a loss that is no scalar, with and without a strategy.
    return {"evaluate": [model.evaluate(x[:n], y[:n], batch_size=8, verbose=0) for n in (8, 16, 35)]}


@program
def masked_sequences(scope: Scope) -> dict[str, Any]:
    import keras

    rng = np.random.default_rng(9)
    x = rng.integers(0, 6, (30, 5))
    y = rng.integers(0, 3, (30, 5))
    x[:, 0] = 1
    keras.utils.set_random_seed(6)
    results: dict[str, Any] = {}
    for reduction in ("sum_over_batch_size", "mean_with_sample_weight", "sum"):
        with scope():
            model = keras.Sequential(
                [
                    keras.Input((5,), dtype="int32"),
                    keras.layers.Embedding(6, 4, mask_zero=True),
                    keras.layers.GRU(5, return_sequences=True),
                    keras.layers.Dense(3, activation="softmax"),
                ]
            )
            model.set_weights([rng.normal(0, 0.4, weight.shape) for weight in model.get_weights()])
            model.compile(
                optimizer=keras.optimizers.SGD(0.01),
                loss=keras.losses.SparseCategoricalCrossentropy(reduction=reduction),
                metrics=["accuracy"],
            )
        results[reduction] = results_of(model, model.fit(x, y, batch_size=7, epochs=2, verbose=0, shuffle=False))
    return results


@program
def penalties(scope: Scope) -> dict[str, Any]:
    import keras
    from keras import ops

    class Penalised(keras.layers.Dense):
        """Adds a mean over the batch, and a term per row."""

        def call(self, inputs: Any, training: bool | None = None) -> Any:
            out = super().call(inputs)
            self.add_loss(0.1 * ops.mean(ops.square(out)))
            self.add_loss(0.01 * ops.sum(ops.abs(out), axis=-1))
            return out

    x, y = numbers(41)
    keras.utils.set_random_seed(6)
    with scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                Penalised(7, kernel_regularizer="l2"),
                keras.layers.Dense(2, activity_regularizer=keras.regularizers.L1(0.1), bias_regularizer="l1"),
            ]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.02), loss="mse")
    return results_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False))


@program
def every_optimizer(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = numbers(20)
    names = ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion"]
    results: dict[str, Any] = {}
    for name in [*names, "Lamb", "Muon"]:
        optimizer = getattr(keras.optimizers, name)(0.01, clipnorm=0.5)
        model = regressor(scope, optimizer=optimizer)
        results[name] = results_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False))
    return results


@program
def clipping_averaging_and_accumulation(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = numbers(45)
    results: dict[str, Any] = {}
    for name, options in {
        "clipvalue": {"clipvalue": 0.01},
        "global_clipnorm": {"global_clipnorm": 0.05},
        "ema": {"use_ema": True, "ema_momentum": 0.8},
        "accumulation": {"gradient_accumulation_steps": 3, "clipnorm": 0.1},
    }.items():
        model = regressor(scope, optimizer=keras.optimizers.Adam(0.01, **options))
        results[name] = results_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False))
    return results


@program
def layers_frozen_and_thawed_between_compiles(scope: Scope) -> dict[str, Any]:
    x, y = classes()
    model = classifier(scope)
    results = {}
    for trainable in (False, True):
        model.layers[0].trainable = trainable
        with scope():
            model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
        history = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
        results[f"trainable_{trainable}"] = results_of(model, history)
    return results


@program
def parameters_that_the_loss_does_not_reach(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = numbers()
    keras.utils.set_random_seed(6)
    with scope():

        class Partial(keras.Model):
            """Has a layer that it builds and never uses."""

            def __init__(self) -> None:
                super().__init__()
                self.used = keras.layers.Dense(2)
                self.unused = keras.layers.Dense(3)

            def build(self, shape: Any) -> None:
                self.used.build(shape)
                self.unused.build(shape)

            def call(self, inputs: Any) -> Any:
                return self.used(inputs)

        model = Partial()
        model.compile(optimizer=keras.optimizers.Adam(0.01, weight_decay=0.1), loss="mse")
    return results_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False))


@program
def subclassed_model_built_by_fit(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = numbers()
    keras.utils.set_random_seed(6)
    with scope():

        class Residual(keras.Model):
            """Unbuilt until it sees data; shares a layer."""

            def __init__(self) -> None:
                super().__init__()
                self.first = keras.layers.Dense(6, activation="relu")
                self.last = keras.layers.Dense(2)

            def call(self, inputs: Any, training: bool = False) -> Any:
                return self.last(self.first(self.first(inputs)) + inputs)

        model = Residual()
    model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
    return results_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0))


@program_of("torch")
def own_train_and_test_step(scope: Scope) -> dict[str, Any]:
    import keras
    import torch
    from keras import ops

    class Own(keras.Model):
        """The custom training step of Keras's guide for PyTorch."""

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            self.zero_grad()
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred)) + ops.mean(ops.abs(y_pred))
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
            self.tracker.update_state(loss)
            self.error.update_state(y, y_pred)
            return {"loss": self.tracker.result(), "mae": self.error.result(), "twice": 2 * loss}

        def test_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            y_pred = self(x, training=False)
            self.tracker.update_state(ops.mean(ops.square(y - y_pred)))
            self.error.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

        @property
        def metrics(self) -> list[Any]:
            return [self.tracker, self.error]

    return trained_with_own_steps(scope, Own)


@program_of("torch")
def own_steps_around_those_of_keras(scope: Scope) -> dict[str, Any]:
    import keras

    class Around(keras.Model):
        """Calls Keras's steps and adds to their logs."""

        def train_step(self, data: Any) -> dict[str, Any]:
            logs = super().train_step(data)
            return {**logs, "rate": self.optimizer.learning_rate, "kind": "training", "rows": len(data[0]) * 0 + 3}

        def test_step(self, data: Any) -> dict[str, Any]:
            return super().test_step(data)

    class Guide(keras.Model):
        """The steps of Keras's guide, which go over all metrics."""

        def train_step(self, data: Any) -> dict[str, Any]:
            import torch

            x, y = data
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
            self.zero_grad()
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
            return self._update(loss, y, y_pred)

        def test_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            y_pred = self(x, training=False)
            return self._update(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)

        def _update(self, loss: Any, y: Any, y_pred: Any) -> dict[str, Any]:
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

    x, y = numbers(35)
    results: dict[str, Any] = {}
    for kind in (Around, Guide):
        keras.utils.set_random_seed(6)
        with scope():
            inputs = keras.Input((6,))
            model = kind(inputs, keras.layers.Dense(2, kernel_regularizer="l2")(inputs))
            model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=(x[:13], y[:13]))
        numbers_only = {name: values for name, values in history.history.items() if "compile" not in name}
        numbers_only.pop("kind", None)
        results[kind.__name__] = {"weights": model.get_weights(), "history": numbers_only}
        results[kind.__name__]["evaluate"] = model.evaluate(x, y, batch_size=9, verbose=0, return_dict=True)
    return results


@program_of("torch")
def own_train_step_with_synchronised_batch_normalization(scope: Scope) -> dict[str, Any]:
    import keras
    import torch
    from keras import ops

    class Own(keras.Model):
        """A mean over the rows of the step."""

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            self.zero_grad()
            loss = ops.mean(ops.square(y - self(x, training=True)))
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
            return {"loss": loss}

    return trained_with_own_step_synchronised(scope, Own)


@program
def own_loss_and_metric_computation(scope: Scope) -> dict[str, Any]:
    import keras
    from keras import ops

    class Own(keras.Model):
        """Overrides the two methods that Keras offers for it."""

        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            loss = ops.mean((y_pred - y) ** 2) + 0.1 * ops.mean(y_pred**2)
            self.own.update_state(loss)
            return loss

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
            self.size.update_state(ops.abs(y_pred))
            return self.get_metrics_result()

    x, y = numbers(35)
    keras.utils.set_random_seed(6)
    with scope():
        inputs = keras.Input((6,))
        model = Own(inputs, keras.layers.Dense(2)(inputs))
        model.own, model.size = keras.metrics.Mean(name="own"), keras.metrics.Mean(name="size")
        model.compile(optimizer="sgd", loss="mse")
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return results_of(model, history, evaluate=model.evaluate(x, y, batch_size=9, verbose=0, return_dict=True))


@program
def metrics_that_are_not_sums(scope: Scope) -> dict[str, Any]:
    import keras
    from keras import ops

    class Largest(keras.metrics.Metric):
        """The largest error so far."""

        def __init__(self) -> None:
            super().__init__(name="largest")
            self.value = self.add_variable((), "zeros", name="value")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.value.assign(ops.maximum(self.value, ops.max(ops.abs(y_true - y_pred))))

        def result(self) -> Any:
            return ops.convert_to_tensor(self.value)

    def spread(y_true: Any, y_pred: Any) -> Any:
        return ops.std(y_pred)

    def row_error(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.abs(y_true - y_pred), axis=-1)

    x, y = numbers(35)
    model = regressor(scope, metrics=[Largest(), spread, row_error, keras.metrics.R2Score()])
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return results_of(model, history, evaluate=model.evaluate(x, y, batch_size=9, verbose=0))


@program
def callbacks_that_decide(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = classes(60)
    model = classifier(scope, optimizer=keras.optimizers.SGD(0.5))
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.TerminateOnNaN(),
    ]
    history = model.fit(
        x, y, batch_size=16, epochs=12, verbose=0, validation_split=0.3, callbacks=callbacks, initial_epoch=2
    )
    return results_of(model, history, rate=float(model.optimizer.learning_rate))


@program
def learning_rate_schedule(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = classes()
    schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=9, warmup_steps=3, warmup_target=0.2)
    model = classifier(scope, optimizer=keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True))
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, validation_freq=2, validation_split=0.1)
    return results_of(model, history)


@program
def synchronised_batch_normalization(scope: Scope) -> dict[str, Any]:
    import keras

    rng = np.random.default_rng(9)
    x, y = rng.normal(3, 2, (26, 4, 4, 3)).astype("float32"), rng.integers(0, 2, 26)
    keras.utils.set_random_seed(6)
    synchronized = scope is not contextlib.nullcontext
    with scope():
        model = keras.Sequential(
            [
                keras.Input((4, 4, 3)),
                keras.layers.Conv2D(4, 3),
                keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.8),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(synchronized=synchronized, scale=False),
                keras.layers.Dense(2, activation="softmax"),
            ]
        )
        model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return results_of(model, history, predict=model.predict(x, verbose=0))


@program
def mixed_float16_with_loss_scaling(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = classes(48)
    keras.utils.set_random_seed(6)
    with scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, activation="relu", dtype="mixed_float16"),
                keras.layers.Dense(4, activation="softmax", dtype="float32"),
            ]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**8)
        model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    return {"history": history.history, "scale": float(model.optimizer.dynamic_scale)}


@program
def methods_on_one_batch(scope: Scope) -> dict[str, Any]:
    x, y = classes()
    model = classifier(scope, weighted_metrics=["accuracy"])
    losses = [
        model.train_on_batch(x[:16], y[:16]),
        model.train_on_batch(x[16:17], y[16:17]),
        model.train_on_batch(x[17:30], y[17:30], sample_weight=np.linspace(0, 1, 13, dtype="float32")),
        model.train_on_batch(x[30:], y[30:], class_weight={0: 1.0, 1: 2.0, 2: 0.0, 3: 1.0}),
    ]
    return results_of(
        model,
        losses=losses,
        test=model.test_on_batch(x[:5], y[:5], return_dict=True),
        predict=model.predict_on_batch(x[:3]),
    )


@program
def repeated_fits_and_weights_set_between(scope: Scope) -> dict[str, Any]:
    x, y = classes()
    model = classifier(scope)
    start = model.get_weights()
    model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    model.set_weights(start)
    history = model.fit(x, y, batch_size=10, epochs=2, verbose=0, steps_per_epoch=3)
    return results_of(model, history)


@program
def several_steps_per_execution(scope: Scope) -> dict[str, Any]:
    x, y = classes()
    # Keras alone refuses more than 1 on torch, and what is right does not depend on it.
    model = classifier(scope, steps_per_execution=1 if scope is contextlib.nullcontext else 3)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=(x[:21], y[:21]))
    return results_of(model, history, predict=model.predict(x, batch_size=9, verbose=0))


@program
def compiled_to_run_eagerly(scope: Scope) -> dict[str, Any]:
    import keras

    class Branching(keras.layers.Layer):
        """Looks at numbers, as one does to debug."""

        def call(self, inputs: Any) -> Any:
            try:
                positive = float(keras.ops.sum(inputs[0])) > 0
            except Exception:  # noqa: BLE001 - while Keras infers shapes there are no numbers
                return inputs
            return inputs * 2 if positive else inputs * 2.0

    x, y = numbers(21)
    keras.utils.set_random_seed(6)
    with scope():
        model = keras.Sequential([keras.Input((6,)), Branching(), keras.layers.Dense(2)])
        model.compile(optimizer="sgd", loss="mse", metrics=["mae"], run_eagerly=True)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return results_of(model, history, evaluate=model.evaluate(x, y, batch_size=9, verbose=0))


@program
def without_just_in_time_compilation(scope: Scope) -> dict[str, Any]:
    x, y = numbers(21)
    model = regressor(scope, jit_compile=False)
    return results_of(model, model.fit(x, y, batch_size=8, epochs=1, verbose=0), predict=model.predict(x, verbose=0))
