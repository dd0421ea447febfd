# SPDX-License-Identifier: Apache-2.0
"""`optimizer.apply` on one of several replicas: it sums the gradients over replicas first, as in TensorFlow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from stratagem._core import contexts, recorder
from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.engines.torch._engine import TorchEngine
from stratagem.keras_fit import _step

_THREAD = threading.local()


def apply(
    original: Callable[..., Any], optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
) -> Any:
    """`Optimizer.apply`, from which every other way to apply gradients goes."""
    if getattr(_THREAD, "summed", False):
        return original(optimizer, grads, trainable_variables)
    summed = _sum_over_replicas(list(grads))
    if recorder.take(summed, trainable_variables):
        return None
    _THREAD.summed = True
    try:
        return original(optimizer, summed, trainable_variables)
    finally:
        _THREAD.summed = False


def _sum_over_replicas(grads: list[Any]) -> list[Any]:
    step = _step.current()
    if step is not None:
        return _sum(grads, step.share.fraction, step.counts) if step.reduces_gradients else grads
    context = contexts.current()
    if context is None or context.is_cross_replica or context.strategy.num_replicas_in_sync == 1:
        return grads
    return _sum(grads, 1.0, True)


def _sum(grads: list[Any], weight: float, counts: bool) -> list[Any]:
    """Sum of `weight * gradient`; None where no replica has a gradient."""
    engine = cast(TorchEngine, select.engine())
    engine.refuse_summed([grad for grad in grads if grad is not None])
    has_gradient = [counts and grad is not None for grad in grads]
    kinds = engine.all_gather_objects([[None if grad is None else (grad.dtype, grad.shape) for grad in grads]])
    present = engine.to_tensor(torch.tensor(has_gradient, dtype=torch.int32))
    known = [next((kind[i] for kind in kinds if kind[i] is not None), None) for i in range(len(grads))]
    parts = [
        grad.detach() * weight if has else engine.to_tensor(torch.zeros(kind[1], dtype=kind[0]))
        for grad, has, kind in zip(grads, has_gradient, known, strict=True)
        if kind is not None
    ]
    present, *totals = engine.all_reduce(Reduction.SUM, [[present, *parts]])[0]
    remaining = iter(totals)
    return [
        None if kind is None else _if_present(next(remaining), count)
        for kind, count in zip(known, present.tolist(), strict=True)
    ]


def _if_present(total: torch.Tensor, count: int) -> torch.Tensor | None:
    return total if count else None
