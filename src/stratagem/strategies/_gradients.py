# SPDX-License-Identifier: Apache-2.0
"""Gradients for loops of one's own; Keras 3 has no counterpart of `tf.GradientTape`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratagem.engines import select

__all__ = ["value_and_grad"]


def value_and_grad(fn: Callable[..., Any], variables: Sequence[Any], has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns `fn`'s value and its gradients by `variables`.

    The gradients are this replica's own: `optimizer.apply` sums over replicas, as in `tf.distribute`.

    Args:
        fn: Returns a scalar, or with `has_aux` a scalar and anything else.
        variables: The Keras variables to differentiate by, such as `model.trainable_variables`.
        has_aux: Whether `fn` returns a pair.

    Returns:
        A function with `fn`'s arguments that returns `(value, gradients)`, where a variable that the value does not
        depend on has None; with `has_aux`, `value` is the pair.

    >>> from stratagem.testing.fake_engine import FakeEngine, FakeVariable
    >>> w = FakeVariable(3.0)
    >>> with select.use(FakeEngine()):
    ...     value, (gradient,) = value_and_grad(lambda x: x * w.value**2, [w])(2.0)
    >>> float(value), round(float(gradient), 1)
    (18.0, 12.0)
    """
    return select.engine().value_and_grad(fn, variables, has_aux)
