# SPDX-License-Identifier: Apache-2.0
"""The faster kernels give what Keras's own give, to rounding, and a switch turns them off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras.src.backend.torch import nn as torch_nn

import stratagem
from stratagem._core import state
from stratagem.data._split import Share
from stratagem.engines import select
from stratagem.engines.torch import TorchEngine
from stratagem.engines.torch._local import LocalTransport
from stratagem.keras_fit import _step
from stratagem.keras_fit._step import Step
from stratagem.keras_fit._torch import _batch_normalization, _hooks

pytestmark = [
    pytest.mark.timeout(60),
    # Keras's own variables, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

TOLERANCES = {
    "float32": 2e-5,
    "mixed_float16": 2e-3,
    "mixed_bfloat16": 2e-2,
    "float16": 4e-3,
    "bfloat16": 4e-2,
}


@dataclass
class Results:
    """What a layer made of a batch: its output, the gradients of the input and the weights, and its new state."""

    output: torch.Tensor
    input_gradient: torch.Tensor | None
    weight_gradients: list[torch.Tensor]
    state: list[torch.Tensor]


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hooks that are out again before what a test has patched below them is."""
    _hooks.install()
    yield
    _hooks.uninstall()


def run(make: Callable[[], Any], x: torch.Tensor, *, fast: bool, training: bool) -> Results:
    """A new layer with the same weights each time, inside a step with or without fast paths."""
    keras.utils.set_random_seed(3)
    layer = make()
    layer.build(x.shape)
    for number, weight in enumerate(layer.weights):
        torch.manual_seed(number)
        # Positive, since some are variances.
        weight.assign(torch.rand(tuple(weight.shape)) + 0.5)
    x = x.clone().requires_grad_()
    step = Step(
        share=Share(0, x.shape[0], x.shape[0]),
        transport=LocalTransport(),
        weighs_losses=True,
        reduces_gradients=False,
        fast_paths=fast,
    )
    with _step.running(step):
        output = layer(x, training=training)
    weights = torch.linspace(-1.0, 2.0, output.numel()).reshape(output.shape)
    (output.float() * weights).sum().backward()
    return Results(
        output.detach(),
        x.grad,
        [weight._value.grad for weight in layer.trainable_weights if weight._value.grad is not None],
        [weight.value.detach().clone() for weight in layer.non_trainable_weights],
    )


def assert_same_to_rounding(fast: Results, slow: Results, tolerance: float) -> None:
    assert fast.output.dtype == slow.output.dtype
    assert len(fast.weight_gradients) == len(slow.weight_gradients)
    pairs = [
        (fast.output, slow.output),
        (fast.input_gradient, slow.input_gradient),
        *zip(fast.weight_gradients, slow.weight_gradients, strict=True),
        *zip(fast.state, slow.state, strict=True),
    ]
    for mine, theirs in pairs:
        assert mine is not None
        assert theirs is not None
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        scale = max(1.0, float(theirs.float().abs().max()))
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=0, atol=tolerance * scale)


def images(*shape: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape) * 2 + 1


SHAPES = {"rows": (6, 3), "one row": (1, 3), "images": (2, 4, 5, 3), "one image": (1, 4, 5, 3)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no scale": {"scale": False},
    "no center": {"center": False},
    "neither": {"scale": False, "center": False},
    "axis 1": {"axis": 1},
    "momentum": {"momentum": 0.5, "epsilon": 0.1},
    "frozen": {"trainable": False},
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_normalization_in_one_kernel_is_that_of_keras(
    shape: str, options: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch, _batch_normalization, "_one_kernel")
    results = [
        run(
            lambda: keras.layers.BatchNormalization(**OPTIONS[options]),
            images(*SHAPES[shape]),
            fast=fast,
            training=training,
        )
        for fast in (True, False)
    ]
    assert len(calls) == 1, "once, with fast paths"
    assert_same_to_rounding(*results, tolerance=TOLERANCES["float32"])


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("shape", ["rows", "images"])
@pytest.mark.parametrize("policy", TOLERANCES)
def test_batch_normalization_in_one_kernel_keeps_precision_policies(policy: str, shape: str, training: bool) -> None:
    results = [
        run(lambda: keras.layers.BatchNormalization(dtype=policy), images(*SHAPES[shape]), fast=fast, training=training)
        for fast in (True, False)
    ]
    assert str(results[0].output.dtype) == f"torch.{policy.removeprefix('mixed_')}"
    assert_same_to_rounding(*results, tolerance=TOLERANCES[policy])


def test_large_means_do_not_cost_the_one_kernel_its_precision() -> None:
    x = images(64, 3) + 1000.0
    exact = (x.double() - x.double().mean(0)) / (x.double().var(0, unbiased=False) + 1e-3).sqrt()
    layer = keras.layers.BatchNormalization(scale=False, center=False)
    layer.build(x.shape)
    step = Step(Share(0, 64, 64), LocalTransport(), weighs_losses=True, reduces_gradients=False, fast_paths=True)
    with _step.running(step):
        torch.testing.assert_close(layer(x, training=True).double(), exact, rtol=0, atol=1e-3)


L = keras.layers
LAYERS: dict[str, Callable[[], Any]] = {
    "convolution": lambda: L.Conv2D(5, 3),
    "1x1": lambda: L.Conv2D(5, 1),
    "strides": lambda: L.Conv2D(5, 3, strides=2),
    "padding": lambda: L.Conv2D(5, 3, padding="same"),
    "strides and padding": lambda: L.Conv2D(5, 3, strides=2, padding="same"),
    "uneven": lambda: L.Conv2D(5, (2, 4), strides=(1, 2), padding="same"),
    "dilation": lambda: L.Conv2D(5, 3, dilation_rate=2, padding="same"),
    "groups": lambda: L.Conv2D(4, 3, groups=2),
    "activation": lambda: L.Conv2D(5, 3, activation="relu", use_bias=False),
    "channels first": lambda: L.Conv2D(5, 3, data_format="channels_first"),
    "depthwise": lambda: L.DepthwiseConv2D(3),
    "depthwise with strides and padding": lambda: L.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2),
    "separable": lambda: L.SeparableConv2D(5, 3, padding="same"),
    "transposed": lambda: L.Conv2DTranspose(5, 3, strides=2, padding="same"),
    "largest": lambda: L.MaxPooling2D(2),
    "largest with padding": lambda: L.MaxPooling2D(3, strides=2, padding="same"),
    "average": lambda: L.AveragePooling2D(2),
    "average with padding": lambda: L.AveragePooling2D(3, strides=2, padding="same"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_convolutions_and_pooling_without_the_copy_are_those_of_keras(name: str) -> None:
    fast, slow = (run(LAYERS[name], images(2, 8, 9, 4), fast=fast, training=True) for fast in (True, False))
    assert_same_to_rounding(fast, slow, TOLERANCES["float32"])
    if name.startswith(("largest", "channels first")):
        assert torch.equal(fast.output, slow.output)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_convolutions_without_the_copy_keep_precision_policies(policy: str) -> None:
    results = [
        run(lambda: L.Conv2D(5, 3, strides=2, dtype=policy), images(2, 8, 9, 4), fast=fast, training=True)
        for fast in (True, False)
    ]
    assert_same_to_rounding(*results, tolerance=TOLERANCES[policy])


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The arguments of each call of a function from now on."""
    calls: list[Any] = []
    original = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return calls


@pytest.fixture
def one_replica() -> Iterator[stratagem.MirroredStrategy]:
    was_connected = state.connected()
    with select.use(TorchEngine()) as engine:
        yield stratagem.MirroredStrategy(["CPU:0"])
        engine.disconnect()
    if not was_connected:
        state.mark_disconnected()


@pytest.mark.parametrize(("switch", "are_used"), [(None, True), ("1", True), ("0", False)])
def test_stratagem_fast_paths_turns_the_fast_paths_on_and_off(
    switch: str | None, are_used: bool, one_replica: stratagem.MirroredStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    if switch is None:
        monkeypatch.delenv("STRATAGEM_FAST_PATHS", raising=False)
    else:
        monkeypatch.setenv("STRATAGEM_FAST_PATHS", switch)
    _hooks.uninstall()
    # Keras's own, which a fast path goes around.
    transposed = count_calls(monkeypatch, torch_nn, "_transpose_spatial_inputs")
    kernels = count_calls(monkeypatch, _batch_normalization, "_one_kernel")
    with one_replica.scope():
        model: Any = keras.Sequential(
            [keras.Input((4, 4, 3)), L.Conv2D(2, 3), L.BatchNormalization(), L.Flatten(), L.Dense(1)]
        )
        model.compile("sgd", "mse")
    x, y = np.ones((4, 4, 4, 3), np.float32), np.ones((4, 1), np.float32)
    transposed.clear()
    for use in (
        lambda: model.fit(x, y, verbose=0),
        lambda: model.evaluate(x, y, verbose=0),
        lambda: model.predict(x, verbose=0),
    ):
        kernels.clear()
        use()
        assert bool(kernels) is are_used
    real = [args for args in transposed if args[0].device.type != "meta"]
    assert bool(real) is not are_used


def test_outside_a_step_nothing_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, _batch_normalization, "_one_kernel")
    keras.layers.BatchNormalization()(images(2, 3), training=True)
    assert calls == []
