# SPDX-License-Identifier: Apache-2.0
"""The gradient of a weight that a matrix product multiplies by, computed in the order in which the weight lies.

jax computes it crosswise and then turns it round. On a CPU that is a copy of every weight's gradient in every step,
which XLA can't leave out where the gradient is summed over replicas before anything reads it. But the product's first
factor is turned round as well: of the result's gradient for jax's order, of the layer's input for ours.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jax import lax
from jax.interpreters import ad

from stratagem._core import env
from stratagem.engines.jax._mesh import Replicas

__all__ = ["computed_in_order"]


class _Thread(threading.local):
    in_order = False


_THREAD = _Thread()


@contextmanager
def computed_in_order(replicas: Replicas) -> Iterator[None]:
    """Around the trace of a step that trains on `replicas`; does nothing for those that are not on CPUs."""
    previous = _THREAD.in_order
    _THREAD.in_order = replicas.on_cpu and env.fast_paths()
    if _THREAD.in_order:
        _install()
    try:
        yield
    finally:
        _THREAD.in_order = previous


@functools.cache
def _install() -> None:
    # The rules by which jax transposes a product in its first factor and in its second.
    of_first, of_second = ad.primitive_transposes[lax.dot_general_p].args
    ad.defbilinear(lax.dot_general_p, of_first, functools.partial(_gradient, of_second))


def _gradient(jaxs: Callable[..., Any], of_result: Any, x: Any, weight: Any, **options: Any) -> Any:
    (in_x, in_weight), (batch, _) = options["dimension_numbers"]
    leads = list(in_weight) == list(range(len(in_weight)))  # what is summed over are the weight's first axes, in order
    turned_by_jax = of_result.size + weight.aval.size
    if not _THREAD.in_order or batch or not leads or list(in_x) != sorted(in_x) or x.size > turned_by_jax:
        return jaxs(of_result, x, weight, **options)
    rows = tuple(axis for axis in range(x.ndim) if axis not in in_x)
    gradient = lax.dot_general(
        x,
        of_result,
        ((rows, tuple(range(len(rows)))), ((), ())),
        precision=options["precision"],
        preferred_element_type=options["preferred_element_type"],
    )
    return gradient.astype(weight.aval.dtype)
