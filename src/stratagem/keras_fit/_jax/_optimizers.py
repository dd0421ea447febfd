# SPDX-License-Identifier: Apache-2.0
"""`optimizer.apply` inside `strategy.run`: it sums the gradients over replicas first, as TensorFlow's does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jax import lax

from stratagem._core import recorder
from stratagem.engines.jax._mesh import AXIS
from stratagem.engines.jax._scopes import mirrored_writes
from stratagem.engines.jax._tracing import in_replica_trace

_THREAD = threading.local()


def apply(
    original: Callable[..., Any], optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
) -> Any:
    """`Optimizer.apply`, from which every other way to apply gradients goes; a gradient that is None stays None."""
    if getattr(_THREAD, "summed", False):
        return original(optimizer, grads, trainable_variables)
    if not in_replica_trace():
        recorded = recorder.take(grads, trainable_variables)
        return None if recorded else original(optimizer, grads, trainable_variables)
    summed = _summed(grads)
    if recorder.take(summed, trainable_variables):
        return None
    with _applying():
        return original(optimizer, summed, trainable_variables)


def apply_scaled(
    original: Callable[..., Any], optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
) -> Any:
    """`LossScaleOptimizer.apply`, which on jax works in its stateless form alone; inside `strategy.run` it does."""
    if not in_replica_trace() or getattr(_THREAD, "summed", False):
        return original(optimizer, grads, trainable_variables)
    if not optimizer.built:
        optimizer.build(trainable_variables)
    weights = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
    variables = [*weights, *optimizer.variables]
    with _applying():
        new_weights, new_state = optimizer.stateless_apply(
            [variable.value for variable in optimizer.variables], _summed(grads), [weight.value for weight in weights]
        )
        for variable, value in zip(variables, [*new_weights, *new_state], strict=True):
            variable.assign(value)
    return None


def _summed(grads: Sequence[Any]) -> list[Any]:
    return [None if grad is None else lax.psum(grad, AXIS) for grad in grads]


@contextmanager
def _applying() -> Iterator[None]:
    """The gradients have been summed, and what is written inside is the same on all replicas."""
    _THREAD.summed = True
    try:
        with mirrored_writes():
            yield
    finally:
        _THREAD.summed = False
