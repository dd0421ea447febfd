# SPDX-License-Identifier: Apache-2.0
"""What is used of Keras's inside on jax alone still is what it is used as; tests/unit/keras_fit has the rest."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from stratagem.keras_fit._internals import Internal
from stratagem.keras_fit._jax._internals import INTERNALS
from tests.keras_tables import Checks

pytestmark = pytest.mark.timeout(60)

X, Y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
CHECKS = Checks()
check = CHECKS.of


def model_of(*layers: Any, **options: Any) -> Any:
    model = keras.Sequential([keras.Input((2,)), *(layers or (keras.layers.Dense(1),))])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: f"{internal.owner}.{internal.name}")
def test_an_internal_name_is_what_it_is_used_as(internal: Internal) -> None:
    CHECKS[internal.owner, internal.name]()


def test_every_row_is_checked_and_has_its_reason() -> None:
    assert sorted((internal.owner, internal.name) for internal in INTERNALS) == sorted(CHECKS)
    assert all(internal.reason for internal in INTERNALS)


@check("keras.Variable", "_value")
def _a_variable_has_the_array_that_it_is_given() -> None:
    variable, array = keras.Variable([1.0, 2.0]), jnp.asarray([3.0, 4.0])
    variable._value = array
    assert variable.value is array


@check("keras.src.trainers.data_adapters.array_slicing", "convert_to_sliceable")
def _batches_of_arrays_are_cut_by_a_function_that_may_leave_it() -> None:
    from keras.src.trainers import data_adapters
    from keras.src.trainers.data_adapters import array_slicing

    adapter = data_adapters.get_data_adapter(X, Y, batch_size=3)
    inputs = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="jax")
    asked: list[Any] = []

    def part(sliceable: Any, indices: Any) -> Any:
        asked.append(indices)
        return sliceable.convert_to_jax_compatible(sliceable[indices]) if len(asked) > 2 else None

    first, second = adapter._get_iterator(part, inputs)
    assert keras.tree.flatten(first)[0] is None
    assert keras.tree.flatten(second)[0].shape == (1, 2)


@check("keras.Model", "_get_jax_state")
@check("keras.Model", "_symbolic_build")
def _the_state_is_four_lists_in_the_order_of_keras_s_steps() -> None:
    model = model_of(keras.layers.BatchNormalization(), keras.layers.Dense(1), metrics=["mae"])
    model._symbolic_build(data_batch=(X, Y))
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    kept = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    assert [len(part) for part in state] == [len(part) for part in kept] == [4, 2, 2, 4]
    logs, new = model.train_step(state, (jnp.asarray(X), jnp.asarray(Y)))
    assert logs.keys() == {"loss", "mae"}
    assert [len(part) for part in new] == [4, 2, 2, 4]


@check("keras.Model", "_losses_override")
def _regularisation_reaches_the_loss_through_the_override() -> None:
    model = model_of(keras.layers.Dense(1, kernel_regularizer="l2"))
    model._losses_override = [jnp.asarray(3.0)]
    assert [float(loss) for loss in model.losses] == [3.0]
    model._losses_override = []
    assert [float(loss) for loss in model.losses] != [3.0]


@check("keras.Model", "_make_function")
def _several_steps_are_one_execution() -> None:
    model = model_of(steps_per_execution=3)
    seen: list[Any] = []

    def step(state: int, data: Any) -> tuple[Any, int]:
        seen.append(data)
        return {"loss": data}, state + 1

    logs, state = model._make_function(step)(0, iter("abcde"))
    assert (logs, state, seen) == ({"loss": "c"}, 3, ["a", "b", "c"])


@check("keras.optimizers.LossScaleOptimizer", "_trainable_variables")
def _an_optimizer_knows_its_weights() -> None:
    optimizer, weights = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), [keras.Variable([1.0])]
    optimizer.build(weights)
    assert [id(weight) for weight in optimizer._trainable_variables] == [id(weight) for weight in weights]


@check("keras.src.backend", "get_keras_mask")
@check("keras.src.backend", "set_keras_mask")
def _a_mask_hangs_on_an_array() -> None:
    from keras.src import backend

    array, mask = jnp.ones((2, 3)), jnp.ones((2, 3), bool)
    assert backend.get_keras_mask(array) is None
    backend.set_keras_mask(array, mask)
    assert backend.get_keras_mask(array) is mask
