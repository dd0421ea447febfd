# SPDX-License-Identifier: Apache-2.0
"""Adam's update inside a step, in one pass over memory instead of ten."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stratagem.keras_fit import _step


def parallel_update_step(
    original: Callable[..., None],
    optimizer: Any,
    grads: Sequence[torch.Tensor],
    variables: Sequence[Any],
    learning_rate: Any,
) -> None:
    """Keras's update on torch: `v -= alpha * m / (sqrt(s) + epsilon)`, by torch's own kernel."""
    step = _step.current()
    if step is None or not step.fast_paths or optimizer.amsgrad or not _fits(grads, variables):
        original(optimizer, grads, variables, learning_rate)
        return
    places = [optimizer._get_variable_index(variable) for variable in variables]
    iteration = int(optimizer.iterations) + 1
    torch._fused_adam_(
        [variable._value for variable in variables],
        list(grads),
        [optimizer._momentums[place]._value for place in places],
        [optimizer._velocities[place]._value for place in places],
        [],
        [torch.tensor(float(iteration))] * len(places),
        lr=_rate(optimizer, learning_rate, iteration),
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        weight_decay=0.0,
        # torch divides the second moment by its bias before it adds epsilon, Keras afterwards.
        eps=optimizer.epsilon / math.sqrt(1 - optimizer.beta_2**iteration),
        amsgrad=False,
        maximize=False,
    )


def _rate(optimizer: Any, learning_rate: Any, iteration: int) -> float:
    """The rate from which torch comes to Keras's alpha.

    Keras computes alpha in float32, where `1 - beta_2 ** iteration` keeps few digits; torch uses float64.
    """
    beta_1, beta_2, count = (torch.tensor(value) for value in (optimizer.beta_1, optimizer.beta_2, float(iteration)))
    alpha = float(learning_rate) * torch.sqrt(1 - torch.pow(beta_2, count)) / (1 - torch.pow(beta_1, count))
    bias_1, bias_2 = 1 - optimizer.beta_1**iteration, 1 - optimizer.beta_2**iteration
    return float(alpha) * bias_1 / math.sqrt(bias_2)


def _fits(grads: Sequence[torch.Tensor], variables: Sequence[Any]) -> bool:
    return all(
        tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()
        for tensor in (*grads, *(variable._value for variable in variables))
    )
