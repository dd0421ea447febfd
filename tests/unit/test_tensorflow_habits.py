# SPDX-License-Identifier: Apache-2.0
"""A training loop that was only half ported is told what stands in for TensorFlow's parts."""

from __future__ import annotations

import numpy as np
import pytest

import stratagem
from stratagem.errors import ContextError

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytestmark = pytest.mark.timeout(120)

X = np.ones((4, 3), "float32")


def test_a_gradient_tape_in_a_step_is_answered_with_value_and_grad() -> None:
    import keras
    import tensorflow as tf

    strategy = stratagem.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def step(x: object) -> object:
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(model(x))
        return tape.gradient(loss, model.trainable_variables)

    with pytest.raises(Exception) as caught:
        strategy.run(step, args=(X,))
    assert "stratagem.value_and_grad(loss_fn" in caught.value.__notes__[-1]


def test_run_inside_a_tf_function_is_refused_and_names_our_function() -> None:
    import tensorflow as tf

    strategy = stratagem.OneDeviceStrategy("cpu:0")

    @tf.function(autograph=False)
    def step() -> None:
        strategy.run(lambda: None)

    with pytest.raises(ContextError, match=r"inside a tf\.function.*\n.*@stratagem\.function"):
        step()


def test_errors_that_tensorflow_has_no_part_in_get_no_note() -> None:
    import tensorflow

    assert tensorflow

    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        stratagem.OneDeviceStrategy("cpu:0").run(step)
    assert not hasattr(caught.value, "__notes__")
