# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization inside a step: synchronised where asked for, and by one kernel instead of many where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from keras import ops

from stratagem._core.enums import Reduction
from stratagem.engines.torch import _autograd
from stratagem.errors import ArgumentError
from stratagem.keras_fit import _step
from stratagem.keras_fit._step import Step
from stratagem.keras_fit._synchronized import call_unsynchronized


def call(original: Callable[..., Any], layer: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
    """`BatchNormalization.call`."""
    step = _step.current()
    if step is None or inputs.device.type == "meta":
        # Outside a step there is one replica: its own statistics are those of the batch.
        return call_unsynchronized(original, layer, inputs, training, mask)
    learns = bool(training and layer.trainable)
    if layer.synchronized and learns and step.num_replicas > 1:
        return _synchronized(step, layer, inputs, mask)
    if step.fast_paths and mask is None and not layer.renorm and _has_kernel(layer, inputs):
        return _one_kernel(layer, inputs, learns)
    return call_unsynchronized(original, layer, inputs, training, mask)


def _has_kernel(layer: Any, inputs: torch.Tensor) -> bool:
    # Half types come with weights in float32, except where the layer's whole dtype is one.
    return (
        inputs.ndim in (2, 4)
        and inputs.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and layer.moving_mean.value.dtype == torch.float32
    )


def _one_kernel(layer: Any, inputs: torch.Tensor, learns: bool) -> torch.Tensor:
    x = inputs.float()
    axis = layer.axis % x.ndim
    # Only strides change: a channels-last batch becomes torch's channels_last layout without a copy.
    first = x.movedim(axis, 1)
    gamma = layer.gamma.value if layer.scale else None
    beta = layer.beta.value if layer.center else None
    moving_mean, moving_variance = layer.moving_mean.value, layer.moving_variance.value
    if not learns:
        out = torch.batch_norm(first, gamma, beta, moving_mean, moving_variance, False, 0.0, layer.epsilon, True)
        return out.movedim(1, axis).to(_compute_dtype(layer))
    channels = first.shape[1]
    count = first.numel() // channels
    mean, unbiased = torch.zeros(channels, device=x.device), torch.zeros(channels, device=x.device)
    # With momentum 1 the "running" statistics become those of this batch.
    out = torch.batch_norm(first, gamma, beta, mean, unbiased, True, 1.0, layer.epsilon, True)
    # torch tracks the variance over count - 1, Keras the one over count.
    variance = unbiased * ((count - 1) / count) if count > 1 else torch.zeros_like(unbiased)
    _update_moving(layer, mean, variance)
    return out.movedim(1, axis).to(_compute_dtype(layer))


def _synchronized(step: Step, layer: Any, inputs: torch.Tensor, mask: Any) -> torch.Tensor:
    if layer.renorm:
        raise ArgumentError(
            f"layer {layer.name!r} asks for renorm=True and synchronized=True together",
            fix="use one of them: synchronised statistics are already those of the global batch",
        )
    x = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    axis = layer.axis % x.ndim
    axes = [dim for dim in range(x.ndim) if dim != axis]
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    weights = torch.ones_like(x[..., :1]) if mask is None else mask.to(x.dtype).unsqueeze(-1)
    if not step.counts:
        weights = torch.zeros_like(weights)
    count = weights.expand(x.shape).sum(axes)
    # A train_step of the user's own weights its gradients by rows only when the backward pass is over.
    later = step.share.fraction if step.reduces_gradients else 1.0
    total, count = _autograd.all_reduce(step.transport, Reduction.SUM, [(x * weights).sum(axes), count], later)
    count = count.clamp(min=1)
    mean = total / count
    centred = (x - mean.view(shape)) * weights
    # From centred values, in a second message: a difference of large sums would lose the small variances.
    (squares,) = _autograd.all_reduce(step.transport, Reduction.SUM, [(centred * centred).sum(axes)], later)
    variance = squares / count
    _update_moving(layer, mean.detach(), variance.detach())
    out: Any = ops.batch_normalization(
        x,
        mean,
        variance,
        axis=layer.axis,
        offset=layer.beta.value if layer.center else None,
        scale=layer.gamma.value if layer.scale else None,
        epsilon=layer.epsilon,
    )
    return out.to(_compute_dtype(layer))


def _update_moving(layer: Any, mean: torch.Tensor, variance: torch.Tensor) -> None:
    keep = layer.momentum
    with torch.no_grad():
        torch._foreach_lerp_([layer.moving_mean._value, layer.moving_variance._value], [mean, variance], 1.0 - keep)


def _compute_dtype(layer: Any) -> torch.dtype:
    return getattr(torch, layer.compute_dtype)
