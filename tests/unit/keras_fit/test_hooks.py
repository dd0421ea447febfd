# SPDX-License-Identifier: Apache-2.0
"""Each hook stands where Keras passes by, all can be taken out again, and plain Keras does not notice them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

from stratagem.keras_fit._torch import _hooks
from stratagem.keras_fit._torch._hooks import HOOKS
from tests.keras_tables import DRAWS, calls_while, in_place, name_of

pytestmark = [
    pytest.mark.timeout(60),
    # Keras's own variables, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(12, 8, 8, 3)).astype("float32"), RNG.integers(0, 3, 12)


def classifier() -> Any:
    """A model in which every hook has something to do."""
    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit(_: Path) -> None:
    classifier().fit(X, Y, batch_size=5, verbose=0)


def evaluate(_: Path) -> None:
    classifier().evaluate(X, Y, verbose=0)


def predict(_: Path) -> None:
    classifier().predict(X, verbose=0)


def train_on_batch(_: Path) -> None:
    classifier().train_on_batch(X, Y)


def evaluate_a_batch(_: Path) -> None:
    classifier().test_on_batch(X, Y)


def predict_on_batch(_: Path) -> None:
    classifier().predict_on_batch(X)


def make_functional(_: Path) -> None:
    inputs = keras.Input((2,))
    keras.Model(inputs, keras.layers.Dense(1)(inputs))


def make_subclass(_: Path) -> None:
    class Mine(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    Mine()


def compile_model(_: Path) -> None:
    keras.Sequential([keras.layers.Dense(1)]).compile("sgd", "mse")


def save(folder: Path) -> None:
    classifier().save(folder / "model.keras")


def save_weights(folder: Path) -> None:
    classifier().save_weights(folder / "model.weights.h5")


def export(folder: Path) -> None:
    with pytest.raises(ValueError, match="format"):
        classifier().export(folder / "model", format="none that exists")


def call_a_loss(_: Path) -> None:
    keras.losses.MeanSquaredError()(torch.ones(2, 1), torch.zeros(2, 1))


def call_a_loss_function(_: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", lambda y_true, y_pred: abs(y_true - y_pred))
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))


def update_a_mean(_: Path) -> None:
    keras.metrics.Mean().update_state(3.0)


def apply_gradients(_: Path) -> None:
    weight = keras.Variable([1.0])
    keras.optimizers.SGD().apply_gradients([(torch.ones(1), weight)])


def apply(_: Path) -> None:
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable([1.0])])
    optimizer.apply([torch.ones(1)])


def apply_scaled(_: Path) -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    optimizer.apply([torch.ones(1)], [keras.Variable([1.0])])


def drop_out(_: Path) -> None:
    keras.layers.Dropout(0.5, seed=1)(torch.ones(2, 2), training=True)


def draw(_: Path) -> None:
    keras.random.normal((2,), seed=keras.random.SeedGenerator(1))


def make_a_batch_normalization(_: Path) -> None:
    keras.layers.BatchNormalization.from_config(keras.layers.BatchNormalization().get_config())


def normalize(_: Path) -> None:
    keras.layers.BatchNormalization()(torch.ones(2, 3))


IMAGES = torch.ones(1, 8, 8, 4)


def convolve(_: Path) -> None:
    keras.layers.Conv2D(2, 3)(IMAGES)


def convolve_by_depth(_: Path) -> None:
    keras.layers.DepthwiseConv2D(3)(IMAGES)


def convolve_separably(_: Path) -> None:
    keras.layers.SeparableConv2D(2, 3)(IMAGES)


def pool_the_largest(_: Path) -> None:
    keras.layers.MaxPooling2D()(IMAGES)


def pool_the_average(_: Path) -> None:
    keras.layers.AveragePooling2D(2)(IMAGES)


Use = Callable[[Path], None]


def without_folder(use: Callable[[], None]) -> Use:
    """A use that writes nothing."""
    return lambda _: use()


# Public ways to each hook.
USES: dict[str, tuple[Use, ...]] = {
    "TorchEpochIterator._get_iterator": (fit, evaluate, predict),
    "EpochIterator._enumerate_iterator": (fit, evaluate, predict),
    "Variable.__init__": (make_functional, compile_model),
    "TorchTrainer.__init__": (make_functional, make_subclass, compile_model),
    "Trainer.compile": (compile_model,),
    "TorchTrainer.fit": (fit,),
    "TorchTrainer.evaluate": (evaluate,),
    "TorchTrainer.predict": (predict,),
    "TorchTrainer.train_on_batch": (train_on_batch,),
    "TorchTrainer.test_on_batch": (evaluate_a_batch,),
    "TorchTrainer.predict_on_batch": (predict_on_batch,),
    "TorchTrainer.make_train_function": (fit, train_on_batch),
    "TorchTrainer.make_test_function": (evaluate, evaluate_a_batch),
    "TorchTrainer.make_predict_function": (predict, predict_on_batch),
    "data_adapters.get_data_adapter": (fit, evaluate, predict),
    "Model.save": (save,),
    "Model.save_weights": (save_weights,),
    "Model.export": (export,),
    "Loss.__call__": (call_a_loss, call_a_loss_function, fit, evaluate),
    "loss.reduce_weighted_values": (call_a_loss, call_a_loss_function, fit, evaluate),
    "Trainer._aggregate_additional_loss": (fit, evaluate),
    "Metric.__init__": (update_a_mean, compile_model),
    "Mean.update_state": (update_a_mean, fit, evaluate),
    "BaseOptimizer.apply": (apply, apply_gradients, fit),
    "LossScaleOptimizer.apply": (apply_scaled,),
    "Adam._parallel_update_step": (apply,),
    "random.draw_seed": (draw, drop_out, fit),
    **{name: (without_folder(use),) for name, use in DRAWS.items()},
    "random.dropout": (drop_out,),
    "BatchNormalization.__init__": (make_a_batch_normalization,),
    "BatchNormalization.call": (normalize, fit, predict),
    "nn._transpose_spatial_inputs": (
        convolve,
        convolve_by_depth,
        convolve_separably,
        pool_the_largest,
        pool_the_average,
        fit,
    ),
}


BY_NAME = {name_of(hook): hook for hook in HOOKS}


def test_every_hook_has_a_use_here() -> None:
    assert sorted(USES) == sorted(BY_NAME)
    assert len(BY_NAME) == len(HOOKS)


@pytest.mark.parametrize(("name", "use"), [(name, use) for name, uses in USES.items() for use in uses])
def test_a_hook_is_passed_by(name: str, use: Use, tmp_path: Path) -> None:
    assert calls_while(BY_NAME[name], lambda: use(tmp_path))


def test_a_hook_stands_where_its_function_is_defined() -> None:
    # On a class that only inherits it, uninstalling would leave a copy behind.
    assert [name for name, hook in BY_NAME.items() if hook.name not in vars(hook.owner)] == []


def test_uninstall_gives_keras_all_its_functions_back() -> None:
    before = in_place(BY_NAME)
    _hooks.install()
    assert all(in_place(BY_NAME)[name] is not before[name] for name in before)
    _hooks.uninstall()
    assert all(in_place(BY_NAME)[name] is before[name] for name in before)
    _hooks.uninstall()
    assert all(in_place(BY_NAME)[name] is before[name] for name in before)


def test_installing_twice_is_as_installing_once() -> None:
    before = in_place(BY_NAME)
    _hooks.install()
    once = in_place(BY_NAME)
    _hooks.install()
    assert all(in_place(BY_NAME)[name] is once[name] for name in once)
    _hooks.uninstall()
    assert all(in_place(BY_NAME)[name] is before[name] for name in before)


def test_a_hook_looks_like_the_function_that_it_stands_for() -> None:
    before = {name: inspect.signature(getattr(hook.owner, hook.name)) for name, hook in BY_NAME.items()}
    _hooks.install()
    for name, hook in BY_NAME.items():
        hooked = getattr(hook.owner, hook.name)
        assert inspect.signature(hooked) == before[name], name
        assert hooked.__name__ == hook.name
    assert "momentum" in keras.layers.BatchNormalization(momentum=0.5).get_config()


def results() -> dict[str, Any]:
    model = classifier()
    history = model.fit(X, Y, batch_size=5, epochs=2, verbose=0, validation_data=(X, Y))
    evaluated, predicted = model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)
    on_batch = model.train_on_batch(X, Y)
    return {
        "history": history.history,
        "evaluate": evaluated,
        "predict": predicted.tolist(),
        "train_on_batch": [float(value) for value in on_batch],
        "weights": [weight.tolist() for weight in model.get_weights()],
    }


def test_plain_keras_gives_the_same_bits_while_hooks_are_installed() -> None:
    plain = results()
    _hooks.install()
    assert results() == plain
    _hooks.uninstall()
    assert results() == plain


def test_synchronized_batch_normalization_works_outside_a_strategy_while_hooks_are_installed() -> None:
    x = torch.randn(6, 3)
    expected = keras.layers.BatchNormalization()(x, training=True)
    _hooks.install()
    layer = keras.layers.BatchNormalization(synchronized=True)
    assert torch.equal(layer(x, training=True), expected)
    assert layer.synchronized
    assert layer.get_config()["synchronized"]
