# SPDX-License-Identifier: Apache-2.0
"""Collectives that gradients pass through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stratagem._core.enums import Reduction
from stratagem.engines.torch._transport import Transport


def all_reduce(
    transport: Transport, reduction: Reduction, tensors: Sequence[torch.Tensor], weight: float = 1.0
) -> tuple[torch.Tensor, ...]:
    """`Transport.all_reduce`; the gradient of SUM and MEAN is the SUM or MEAN of the replicas' gradients.

    Args:
        weight: What this replica's loss will be multiplied by only after the backward pass; its gradients count so much
            in the sum, and the sum comes back divided by it.
    """
    if _needs_gradient(tensors) and reduction in (Reduction.SUM, Reduction.MEAN):
        return _AllReduce.apply(transport, reduction, weight, *tensors)
    return tuple(transport.all_reduce(reduction, tensors))


def all_gather(transport: Transport, tensors: Sequence[torch.Tensor], axis: int) -> tuple[torch.Tensor, ...]:
    """`Transport.all_gather`; a replica's gradient is its part of the SUM of the replicas' gradients."""
    if _needs_gradient(tensors):
        return _AllGather.apply(transport, axis, *tensors)
    return tuple(transport.all_gather(tensors, axis))


def _needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, transport: Transport, reduction: Reduction, weight: float, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.transport, ctx.reduction, ctx.weight = transport, reduction, weight
        return tuple(transport.all_reduce(reduction, tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        if ctx.weight == 1.0:
            return (None, None, None, *ctx.transport.all_reduce(ctx.reduction, gradients))
        totals = ctx.transport.all_reduce(ctx.reduction, [gradient * ctx.weight for gradient in gradients])
        # A replica of weight 0 adds nothing later on, whatever it gets here.
        return (None, None, None, *(total / (ctx.weight or 1.0) for total in totals))


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, transport: Transport, axis: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.transport, ctx.axis = transport, axis
        lengths = transport.all_gather_object([tensor.shape[axis] for tensor in tensors])
        ctx.places = [
            (sum(length[i] for length in lengths[: transport.rank]), lengths[transport.rank][i])
            for i in range(len(tensors))
        ]
        return tuple(transport.all_gather(tensors, axis))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        totals = ctx.transport.all_reduce(Reduction.SUM, gradients)
        parts = [
            total.narrow(ctx.axis % total.ndim, start, length)
            for total, (start, length) in zip(totals, ctx.places, strict=True)
        ]
        return (None, None, *parts)
