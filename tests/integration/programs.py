# SPDX-License-Identifier: Apache-2.0
"""Training programs as users write them; each gives the same results with and without a strategy.

A program takes the function to enter a scope with, and returns what a user could look at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

Scope = Callable[[], contextlib.AbstractContextManager[Any]]
Program = Callable[[Scope], dict[str, Any]]

PROGRAMS: dict[str, Program] = {}
# Programs that a user of one engine writes, with that framework's own functions.
ONE_ENGINE: dict[str, str] = {}


def program(function: Program) -> Program:
    """Enter a program into the table under its name."""
    PROGRAMS[function.__name__] = function
    return function


def program_of(engine: str) -> Callable[[Program], Program]:
    """Enter a program into the table that is for one engine only."""

    def enter(function: Program) -> Program:
        ONE_ENGINE[function.__name__] = engine
        return program(function)

    return enter


def classes(rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers, in four classes."""
    rng = np.random.default_rng(7)
    return rng.normal(size=(rows, 8)).astype("float32"), rng.integers(0, 4, rows).astype("int32")


def numbers(rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers, with two numbers to predict."""
    rng = np.random.default_rng(8)
    return rng.normal(size=(rows, 6)).astype("float32"), rng.normal(size=(rows, 2)).astype("float32")


def classifier(scope: Scope, **options: Any) -> Any:
    """A small compiled classifier."""
    import keras

    keras.utils.set_random_seed(3)
    with scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(4, activation="softmax"),
            ]
        )
        settings = {"optimizer": keras.optimizers.Adam(0.01), "metrics": ["accuracy"], **options}
        model.compile(loss="sparse_categorical_crossentropy", **settings)
    return model


def regressor(scope: Scope, loss: Any = "mse", **options: Any) -> Any:
    """A small compiled model that predicts two numbers."""
    import keras

    keras.utils.set_random_seed(4)
    with scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
        model.compile(**{"optimizer": keras.optimizers.SGD(0.05), "loss": loss, **options})
    return model


def results_of(model: Any, history: Any = None, **more: Any) -> dict[str, Any]:
    """What a user could look at after training."""
    results = {"weights": model.get_weights(), **more}
    if history is not None:
        results["history"] = history.history
        results["epochs"] = history.epoch
    return results


def trained_with_own_steps(scope: Scope, own: Any) -> dict[str, Any]:
    """Results of a model of the class `own`, which has training and test steps and two metrics of its own."""
    import keras

    x, y = numbers(35)
    keras.utils.set_random_seed(6)
    with scope():
        inputs = keras.Input((6,))
        model = own(inputs, keras.layers.Dense(2)(keras.layers.Dense(5, activation="tanh")(inputs)))
        model.tracker, model.error = keras.metrics.Mean(name="loss"), keras.metrics.MeanAbsoluteError(name="mae")
        model.compile(optimizer=keras.optimizers.Adam(0.01, clipnorm=0.1))
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=(x[:13], y[:13]))
    return results_of(model, history)


def trained_with_own_step_synchronised(scope: Scope, own: Any) -> dict[str, Any]:
    """Results of a model of the class `own`, with statistics of the whole batch and a last batch of four rows."""
    import keras
    from keras import ops

    x, y = numbers(25)
    keras.utils.set_random_seed(6)
    synchronized = scope is not contextlib.nullcontext
    with scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.BatchNormalization(synchronized=synchronized)(keras.layers.Dense(5)(inputs))
        model = own(inputs, keras.layers.Dense(2)(ops.tanh(hidden)))
        model.compile(optimizer=keras.optimizers.SGD(0.1))
    return results_of(model, model.fit(x, y, batch_size=7, epochs=2, verbose=0, shuffle=False))


@program
def arrays_shuffled_with_validation_split(scope: Scope) -> dict[str, Any]:
    x, y = classes()
    model = classifier(scope)
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, validation_split=0.2)
    return results_of(model, history, predict=model.predict(x, verbose=0), evaluate=model.evaluate(x, y, verbose=0))


@program
def arrays_shuffled_within_batches(scope: Scope) -> dict[str, Any]:
    x, y = classes()
    model = classifier(scope)
    return results_of(model, model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle="batch"))


@program
def torch_tensors(scope: Scope) -> dict[str, Any]:
    import torch

    x, y = classes()
    model = classifier(scope)
    history = model.fit(torch.from_numpy(x), torch.from_numpy(y), batch_size=13, epochs=2, verbose=0)
    return results_of(model, history)


@program
def tf_data_with_class_weight(scope: Scope) -> dict[str, Any]:
    import tensorflow as tf

    x, y = classes()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    model = classifier(scope)
    history = model.fit(data, epochs=2, verbose=0, validation_data=data, class_weight={0: 1.0, 1: 3.0, 2: 0.5, 3: 2.0})
    return results_of(model, history, predict=model.predict(data, verbose=0))


@program
def endless_tf_data_with_steps(scope: Scope) -> dict[str, Any]:
    import tensorflow as tf

    x, y = classes()
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(7)
    model = classifier(scope)
    history = model.fit(data, epochs=3, steps_per_epoch=4, verbose=0, validation_data=data, validation_steps=2)
    return results_of(model, history)


@program
def data_loader_that_shuffles(scope: Scope) -> dict[str, Any]:
    import torch

    x, y = classes()
    model = classifier(scope)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True)
    torch.manual_seed(3)  # keras.utils.set_random_seed does so only where torch is the backend
    first = model.fit(loader, epochs=2, verbose=0, validation_data=(x, y))
    # Arrays after a loader: what the chief drew while it read must not part the replicas' orders.
    model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    return results_of(model, first)


@program
def py_dataset(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = classes()

    class Reshuffled(keras.utils.PyDataset):
        """Reverses its order after each epoch."""

        def __init__(self) -> None:
            super().__init__()
            self.order = np.arange(len(x))

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            rows = self.order[index * 16 : (index + 1) * 16]
            return x[rows], y[rows]

        def on_epoch_end(self) -> None:
            self.order = self.order[::-1]

    model = classifier(scope)
    return results_of(model, model.fit(Reshuffled(), epochs=3, verbose=0, shuffle=False))


@program
def generator_with_steps(scope: Scope) -> dict[str, Any]:
    x, y = classes()

    def batches() -> Any:
        start = 0
        while True:
            rows = np.arange(start, start + 11) % len(x)
            start += 11
            yield x[rows], y[rows], np.linspace(0.5, 2, 11, dtype="float32")

    model = classifier(scope, weighted_metrics=["accuracy"])
    return results_of(model, model.fit(batches(), epochs=2, steps_per_epoch=3, verbose=0))


@program
def named_inputs_and_outputs(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = classes()
    keras.utils.set_random_seed(5)
    with scope():
        left, right = keras.Input((8,), name="left"), keras.Input((2,), name="right")
        hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([left, right]))
        outputs = {
            "kind": keras.layers.Dense(4, activation="softmax", name="kind")(hidden),
            "size": keras.layers.Dense(1, name="size")(hidden),
        }
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss={"kind": "sparse_categorical_crossentropy", "size": "mae"},
            loss_weights={"kind": 1.0, "size": 0.3},
            metrics={"kind": ["accuracy"], "size": ["mse", keras.metrics.RootMeanSquaredError()]},
        )
    inputs, targets = {"left": x, "right": x[:, :2]}, {"kind": y, "size": x[:, :1]}
    history = model.fit(inputs, targets, batch_size=9, epochs=2, verbose=0, shuffle=False)
    predict = model.predict(inputs, batch_size=17, verbose=0)
    evaluate = model.evaluate(inputs, targets, batch_size=23, verbose=0, return_dict=True)
    return results_of(model, history, predict=predict, evaluate=evaluate)


@program
def several_inputs_with_sample_weights_per_output(scope: Scope) -> dict[str, Any]:
    import keras

    x, y = numbers()
    keras.utils.set_random_seed(6)
    with scope():
        first, second = keras.Input((6,)), keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.Add()([first, second]))
        model = keras.Model([first, second], [keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)])
        model.compile(optimizer="sgd", loss=["mse", "mae"], weighted_metrics=[["mae"], ["mse"]])
    weights = [np.linspace(0, 1, len(x), dtype="float32"), np.linspace(3, 0.1, len(x), dtype="float32")]
    history = model.fit([x, x[::-1].copy()], [y, -y], sample_weight=weights, batch_size=16, epochs=2, verbose=0)
    return results_of(model, history)
