# SPDX-License-Identifier: Apache-2.0
"""Adam by one kernel gives what Keras's Adam gives, to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import pytest
import torch

from stratagem.data._split import Share
from stratagem.engines.torch._local import LocalTransport
from stratagem.keras_fit import _step
from stratagem.keras_fit._step import Step
from stratagem.keras_fit._torch import _hooks

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def hooks() -> Iterator[None]:
    """Hooks for the length of a test."""
    _hooks.install()
    yield
    _hooks.uninstall()


def train(optimizer: Any, *, fast: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], int]:
    """The weights after 30 updates, and how many of them the kernel made."""
    calls: list[int] = []
    kernel = torch._fused_adam_

    def counted(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        kernel(*args, **kwargs)

    monkeypatch.setattr(torch, "_fused_adam_", counted)
    random = torch.Generator().manual_seed(3)
    weights = [keras.Variable(torch.randn(shape, generator=random)) for shape in ((7, 5), (5,), (1,))]
    optimizer.build(weights)
    for count in range(30):
        size = 10.0 ** -(count % 9)
        gradients = [torch.randn(weight.shape, generator=random) * size for weight in weights]
        if count % 4 == 1:
            gradients[1] = torch.zeros(5)
        step = Step(Share(0, 4, 4), LocalTransport(), True, False, fast)
        with _step.running(step), torch.no_grad():
            optimizer.apply(gradients, weights)
    monkeypatch.undo()
    return [weight.value.detach().clone() for weight in weights], len(calls)


@pytest.mark.parametrize(
    ("kind", "options", "by_kernel"),
    [
        ("Adam", {}, 30),
        ("Adam", {"clipnorm": 0.1, "epsilon": 1e-3, "beta_1": 0.5}, 30),
        ("Adam", {"learning_rate": keras.optimizers.schedules.CosineDecay(0.1, 20)}, 30),
        ("Adam", {"gradient_accumulation_steps": 3}, 10),
        ("Adam", {"amsgrad": True}, 0),
        ("AdamW", {"weight_decay": 0.1}, 30),
    ],
)
def test_the_kernel_moves_weights_as_keras_does(
    kind: str, options: dict[str, Any], by_kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = getattr(keras.optimizers, kind)
    slow, none = train(make(**{"learning_rate": 0.05, **options}), fast=False, monkeypatch=monkeypatch)
    fast, calls = train(make(**{"learning_rate": 0.05, **options}), fast=True, monkeypatch=monkeypatch)
    assert (none, calls) == (0, by_kernel)
    for mine, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6)
