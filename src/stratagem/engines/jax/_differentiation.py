# SPDX-License-Identifier: Apache-2.0
"""Gradients of functions of Keras variables, which read and write them as they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem.engines.jax._results import Results
from stratagem.engines.jax._scopes import Inner

__all__ = ["value_and_grad"]


def value_and_grad(fn: Callable[..., Any], variables: Sequence[Any], has_aux: bool) -> Callable[..., Any]:
    """`Engine.value_and_grad`, in a function that is being traced and outside of all."""

    def call(*args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        scopes: list[Inner] = []
        others: list[Results] = []

        def loss_of(values: list[Any]) -> tuple[Any, tuple[list[Any], list[Any]]]:
            with Inner(list(zip(variables, values, strict=True))) as scope:
                out = fn(*args, **kwargs)
                written = [scope.get_current_value(variable) for variable in scope.written.values()]
            loss, rest = (out[0], out[1:]) if has_aux else (out, ())
            scopes.append(scope)
            others.append(Results(list(rest)))
            arrays = others[-1].arrays
            others[-1].without_arrays()
            return jnp.asarray(loss), (arrays, written)

        values = [variable.value for variable in variables]
        (loss, (arrays, written)), gradients = jax.value_and_grad(loss_of, has_aux=True)(values)
        scope = scopes[-1]
        scope.hand_over(written)
        used = [
            gradient if id(variable) in scope.read else None
            for variable, gradient in zip(variables, gradients, strict=True)
        ]
        return (loss, *others[-1].around(arrays)) if has_aux else loss, used

    return call
