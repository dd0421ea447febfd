# SPDX-License-Identifier: Apache-2.0
"""No optimizer of Keras writes into the gradients that it is given: ours are views of memory that replicas share."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import pytest
import torch

pytestmark = [
    pytest.mark.timeout(60),
    # Keras's Nadam, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

OPTIMIZERS = sorted(
    name
    for name, value in vars(keras.optimizers).items()
    if inspect.isclass(value)
    and issubclass(value, keras.optimizers.Optimizer)
    # The base class has no update, and two wrap others.
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.01},
    "global_clipnorm": {"global_clipnorm": 0.01},
    "clipvalue": {"clipvalue": 0.01},
    "weight_decay": {"weight_decay": 0.1},
    "ema": {"use_ema": True, "ema_overwrite_frequency": 2},
    "accumulation": {"gradient_accumulation_steps": 2},
    "everything": {
        "clipnorm": 0.01,
        "weight_decay": 0.1,
        "use_ema": True,
        "ema_overwrite_frequency": 2,
        "gradient_accumulation_steps": 2,
    },
}
MORE: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
    "Adam": [{"amsgrad": True}],
    "AdamW": [{"amsgrad": True}],
}
CASES = [
    pytest.param(name, options, id=f"{name}-{label}") for name in OPTIMIZERS for label, options in OPTIONS.items()
] + [
    pytest.param(name, options | more, id=f"{name}-{'-'.join(more)}-{label}")
    for name, extras in MORE.items()
    for more in extras
    for label, options in OPTIONS.items()
]


def make(name: str, options: dict[str, Any]) -> Any:
    return getattr(keras.optimizers, name)(learning_rate=0.1, **options)


def assert_leaves_gradients_alone(optimizer: Any) -> None:
    weights = [keras.Variable(torch.ones(3, 4)), keras.Variable(torch.ones(4))]
    optimizer.build(weights)
    for step in range(1, 6):
        memory = torch.arange(16.0) * step - 5.0
        before = memory.clone()
        gradients = [memory[:12].view(3, 4), memory[12:]]
        with torch.no_grad():
            optimizer.apply(gradients, weights)
        assert torch.equal(memory, before), f"in step {step}"
    assert not torch.equal(weights[0].value, torch.ones(3, 4)), "it did train"


def test_all_optimizers_are_looked_at() -> None:
    assert {"Adadelta", "Adafactor", "Adagrad", "Adam", "Ftrl", "Lion", "Muon", "Nadam", "SGD"} <= set(OPTIMIZERS)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_optimizer_does_not_write_into_its_gradients(name: str, options: dict[str, Any]) -> None:
    assert_leaves_gradients_alone(make(name, options))


def test_loss_scaling_does_not_write_into_its_gradients() -> None:
    assert_leaves_gradients_alone(keras.optimizers.LossScaleOptimizer(make("SGD", {}), initial_scale=4.0))


def test_several_optimizers_in_one_do_not_write_into_their_gradients() -> None:
    optimizer = keras.optimizers.MultiOptimizer(
        lambda variable: make("Adam" if len(variable.shape) == 1 else "SGD", OPTIONS["clipnorm"])
    )
    assert_leaves_gradients_alone(optimizer)
