# SPDX-License-Identifier: Apache-2.0
"""Losses whose sum over the replicas is exactly the loss of one device on the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from stratagem.engines.jax._mesh import AXIS
from stratagem.keras_fit._jax import _trace
from stratagem.keras_fit._loss_divisors import ROWS, divisor_of


class WholeBatchNeeded(Exception):
    """Internal: a loss function returned one number for its rows, so it has to see those of all replicas."""


def reduce_weighted_values(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Keras's reduction of per-row losses to a scalar, times this replica's part of the divisor.

    A mean divides by a count or by a sum of weights. Each replica divides by its own; scaled by its own divisor
    over that of all replicas, the terms add up to the mean over the global batch.
    """
    step = _trace.replica_step()
    if step is None:
        return original(*args, **kwargs)
    return _reduce(step, original, *args, **kwargs)


def _reduce(
    step: _trace.ReplicaStep,
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    if values.ndim == 0:
        raise WholeBatchNeeded
    loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
    divisor = divisor_of(values, sample_weight, mask, reduction)
    if divisor is None:
        return loss
    return loss / step.num_replicas if divisor is ROWS else loss * _fraction(jnp.asarray(divisor, jnp.float32).sum())


def _fraction(divisor: Any) -> Any:
    divisor = lax.stop_gradient(divisor)
    total = lax.psum(divisor, AXIS)
    return jnp.where(total == 0, 0.0, divisor / jnp.where(total == 0, 1.0, total))


def aggregate_additional_loss(original: Callable[..., Any], model: Any, loss: Any) -> Any:
    """A regularisation or `add_loss` term: a scalar is a mean over rows, or knows none; others are sums of rows."""
    value = original(model, loss)
    step = _trace.replica_step()
    if step is None or getattr(loss, "ndim", 0) > 0:
        return value
    return value / step.num_replicas
