# SPDX-License-Identifier: Apache-2.0
"""Each hook stands where Keras passes by on jax, all can be taken out again, and plain Keras does not notice them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from stratagem.keras_fit._jax import _hooks
from stratagem.keras_fit._jax._hooks import HOOKS
from tests.keras_tables import DRAWS, calls_while, in_place, name_of

pytestmark = [
    pytest.mark.timeout(120),
    # Keras's own variables, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(12, 4)).astype("float32"), RNG.integers(0, 3, 12)


@pytest.fixture(autouse=True)
def keras_as_it_is() -> Iterator[None]:
    """No hook is installed when a test begins; afterwards they are as they were."""
    were_installed = HOOKS.installed
    _hooks.uninstall()
    yield
    _hooks.uninstall()
    if were_installed:
        _hooks.install()


def classifier() -> Any:
    """A model in which every hook has something to do."""
    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(4, kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit() -> None:
    classifier().fit(X, Y, batch_size=5, verbose=0)


def evaluate() -> None:
    classifier().evaluate(X, Y, verbose=0)


def predict() -> None:
    classifier().predict(X, verbose=0)


def train_on_batch() -> None:
    classifier().train_on_batch(X, Y)


def evaluate_a_batch() -> None:
    classifier().test_on_batch(X, Y)


def predict_on_batch() -> None:
    classifier().predict_on_batch(X)


def call_a_loss() -> None:
    keras.losses.MeanSquaredError()(jnp.ones((2, 1)), jnp.zeros((2, 1)))


def apply_scaled() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    # Outside of Keras's own steps it is broken on jax; inside strategy.run ours takes the way that Keras's steps take.
    with pytest.raises(jax.errors.UnexpectedTracerError):
        optimizer.apply([jnp.ones(1)], [keras.Variable([1.0])])


def normalize() -> None:
    keras.layers.BatchNormalization()(jnp.ones((2, 3)))


def draw() -> None:
    keras.random.normal((2,), seed=keras.random.SeedGenerator(1))


def save() -> None:
    with tempfile.TemporaryDirectory() as folder:
        classifier().save(Path(folder) / "model.keras")


def save_weights() -> None:
    with tempfile.TemporaryDirectory() as folder:
        classifier().save_weights(Path(folder) / "model.weights.h5")


def export() -> None:
    with pytest.raises(ValueError, match="format"):
        classifier().export("model", format="none that exists")


Use = Callable[[], None]


USES: dict[str, tuple[Use, ...]] = {
    "JAXTrainer.__init__": (classifier,),
    "Variable.__init__": (classifier,),
    "Trainer.compile": (classifier,),
    "JAXTrainer.fit": (fit,),
    "JAXTrainer.jax_state_sync": (fit,),
    "JAXTrainer._get_jax_state": (fit,),
    "JAXTrainer.evaluate": (evaluate,),
    "JAXTrainer.predict": (predict,),
    "JAXTrainer.train_on_batch": (train_on_batch,),
    "JAXTrainer.test_on_batch": (evaluate_a_batch,),
    "JAXTrainer.predict_on_batch": (predict_on_batch,),
    "JAXTrainer.make_train_function": (fit, train_on_batch),
    "JAXTrainer.make_test_function": (evaluate, evaluate_a_batch),
    "JAXTrainer.make_predict_function": (predict, predict_on_batch),
    "data_adapters.get_data_adapter": (fit, evaluate, predict),
    "JAXEpochIterator._get_iterator": (fit, evaluate, predict),
    "EpochIterator._enumerate_iterator": (fit, evaluate, predict),
    "Model.save": (save,),
    "Model.save_weights": (save_weights,),
    "Model.export": (export,),
    "loss.reduce_weighted_values": (fit, call_a_loss),
    "Trainer._aggregate_additional_loss": (fit,),
    "JAXTrainer.compute_loss_and_updates": (fit, evaluate),
    "JAXTrainer._update_metrics_variables": (fit, evaluate),
    "BaseOptimizer.apply": (fit,),
    "LossScaleOptimizer.apply": (apply_scaled,),
    "random.draw_seed": (fit, draw),
    **{name: (use,) for name, use in DRAWS.items()},
    "random.dropout": (fit,),
    "BatchNormalization.__init__": (normalize,),
    "BatchNormalization.call": (normalize, fit, predict),
}


BY_NAME = {name_of(hook): hook for hook in HOOKS}


def test_every_hook_has_a_use_here_and_a_reason() -> None:
    assert sorted(BY_NAME) == sorted(USES)
    assert len(BY_NAME) == len(HOOKS)
    assert all(hook.reason for hook in HOOKS)


@pytest.mark.parametrize(("name", "use"), [(name, use) for name, uses in USES.items() for use in uses])
def test_a_hook_is_passed_by(name: str, use: Use) -> None:
    assert calls_while(BY_NAME[name], use)


def test_a_hook_stands_where_its_function_is_defined() -> None:
    # On a class that only inherits it, uninstalling would leave a copy behind.
    assert [name for name, hook in BY_NAME.items() if hook.name not in vars(hook.owner)] == []


def test_uninstall_gives_keras_all_its_functions_back() -> None:
    before = in_place(BY_NAME)
    _hooks.install()
    assert all(in_place(BY_NAME)[name] is not before[name] for name in before)
    _hooks.uninstall()
    assert all(in_place(BY_NAME)[name] is before[name] for name in before)


def results() -> dict[str, Any]:
    model = classifier()
    history = model.fit(X, Y, batch_size=5, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y))
    return {"history": history.history, "arrays": [*model.get_weights(), model.predict(X, verbose=0)]}


def test_plain_keras_gives_the_same_to_the_bit_with_the_hooks_in_place() -> None:
    plain = results()
    _hooks.install()
    hooked = results()
    assert hooked["history"] == plain["history"]
    for mine, theirs in zip(hooked["arrays"], plain["arrays"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
