# SPDX-License-Identifier: Apache-2.0
"""Losses whose sum over the replicas is exactly the loss of one device on the global batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from keras import tree

from stratagem._core.enums import Reduction
from stratagem.keras_fit import _step
from stratagem.keras_fit._loss_divisors import ROWS, divisor_of
from stratagem.keras_fit._step import Step

_batch_losses: weakref.WeakSet[Any] = weakref.WeakSet()


class _BatchLossFound(Exception):
    """Internal: a loss function returned one number for the whole batch."""


def reduce_weighted_values(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Keras's reduction of per-row losses to a scalar, times this replica's part of the divisor.

    A mean divides by a count or by a sum of weights. Each replica divides by its own; scaled by its own divisor
    over that of all replicas, the terms add up to the mean over the global batch.
    """
    step = _weighing()
    if step is None:
        return original(*args, **kwargs)
    return _reduce(step, original, *args, **kwargs)


def _weighing() -> Step | None:
    """The current step, if its losses have to weigh themselves."""
    step = _step.current()
    return step if step is not None and step.weighs_losses and step.num_replicas > 1 else None


def _reduce(
    step: Step,
    original: Callable[..., Any],
    values: torch.Tensor,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    if values.ndim == 0:
        raise _BatchLossFound
    loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
    divisor = divisor_of(values, sample_weight, mask, reduction)
    if divisor is None:
        return loss
    return loss * (step.share.fraction if divisor is ROWS else _fraction(step, torch.as_tensor(divisor).sum()))


def _fraction(step: Step, divisor: torch.Tensor) -> torch.Tensor:
    mine = divisor.detach().double() * step.counts
    (total,) = step.transport.all_reduce(Reduction.SUM, [mine])
    return torch.where(total == 0, torch.zeros_like(total), mine / total).float()


def call_loss(original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """`Loss.__call__`. A function that returns one number for the batch is given the whole global batch.

    Such a loss (a correlation, a contrastive loss, a mean the user took) can't be put together from the losses
    of parts, so every replica computes it on all rows; gradients flow through the replica's own rows only.
    """
    step = _weighing()
    if step is None:
        return original(loss, y_true, y_pred, sample_weight)
    if loss not in _batch_losses:
        try:
            return original(loss, y_true, y_pred, sample_weight)
        except _BatchLossFound:
            _batch_losses.add(loss)
    everything = [_global_rows(step, part) for part in (y_true, y_pred, sample_weight)]
    with _step.suspended():
        value = original(loss, *everything)
    # Worth this replica's fraction in the sum over replicas, but with the whole gradient.
    fraction = step.share.fraction
    return value * fraction + (value - value.detach()) * (1 - fraction)


def _global_rows(step: Step, part: Any) -> Any:
    return tree.map_structure(lambda tensor: None if tensor is None else _WithOwnGradient.gather(step, tensor), part)


class _WithOwnGradient(torch.autograd.Function):
    """All replicas' rows; the gradient goes to this replica's own."""

    @staticmethod
    def gather(step: Step, rows: torch.Tensor) -> torch.Tensor:
        rows = rows if isinstance(rows, torch.Tensor) else torch.as_tensor(rows)
        return _WithOwnGradient.apply(step, rows)

    @staticmethod
    def forward(ctx: Any, step: Step, rows: torch.Tensor) -> torch.Tensor:
        ctx.rows, ctx.start, ctx.counts = rows.shape[0], step.share.start, step.counts
        return step.transport.all_gather([rows if step.counts else rows[:0]], axis=0)[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        if not ctx.counts:
            return None, torch.zeros_like(gradient[:1])
        return None, gradient[ctx.start : ctx.start + ctx.rows]


def aggregate_additional_loss(original: Callable[..., Any], model: Any, loss: Any) -> Any:
    """A regularisation or `add_loss` term: a scalar is a mean over rows, or knows none; others are sums of rows."""
    value = original(model, loss)
    step = _weighing()
    if step is None or getattr(loss, "ndim", 0) > 0:
        return value
    return value * step.share.fraction
