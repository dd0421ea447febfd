# SPDX-License-Identifier: Apache-2.0
"""How values are reduced between devices: `tf.distribute.CrossDeviceOps` and its kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratagem._core import contexts
from stratagem._core.enums import ReduceOp
from stratagem._core.options import CommunicationOptions
from stratagem.errors import ArgumentError, ContextError
from stratagem.strategies._extended import StrategyExtended

__all__ = ["CrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce", "ReductionToOneDevice"]

_Options = CommunicationOptions | None


class CrossDeviceOps:
    """The base of the ways to reduce between devices: `tf.distribute.CrossDeviceOps`.

    `MirroredStrategy(cross_device_ops=...)` takes one. Those that are here all reduce as the engine does. A class of
    one's own may override the methods that end in `_implementation`: the strategy's `extended.reduce_to`,
    `extended.batch_reduce_to` and `extended.broadcast_to` call them; gradients and metrics go to the engine.
    """

    def __init__(self) -> None:
        pass

    def reduce(
        self, reduce_op: ReduceOp | str, per_replica_value: Any, destinations: object, options: _Options = None
    ) -> Any:
        """Reduce one value per replica to where `destinations` lives."""
        return self.reduce_implementation(reduce_op, per_replica_value, destinations, options)

    def batch_reduce(
        self, reduce_op: ReduceOp | str, value_destination_pairs: Sequence[tuple[Any, object]], options: _Options = None
    ) -> Any:
        """`reduce` for many values."""
        return self.batch_reduce_implementation(reduce_op, value_destination_pairs, options)

    def broadcast(self, tensor: Any, destinations: object) -> Any:
        """Copy one value to all replicas."""
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self, reduce_op: ReduceOp | str, per_replica_value: Any, destinations: object, options: _Options
    ) -> Any:
        """Reduce with the engine of the current strategy."""
        pairs = [(per_replica_value, destinations)]
        return StrategyExtended.batch_reduce_to(_extended("reduce"), reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self, reduce_op: ReduceOp | str, value_destination_pairs: Sequence[tuple[Any, object]], options: _Options
    ) -> Any:
        """Reduce with the engine of the current strategy."""
        extended = _extended("batch_reduce")
        return StrategyExtended.batch_reduce_to(extended, reduce_op, value_destination_pairs, options)

    def broadcast_implementation(self, tensor: Any, destinations: object) -> Any:
        """Broadcast with the engine of the current strategy."""
        return StrategyExtended.broadcast_to(_extended("broadcast"), tensor, destinations)


class NcclAllReduce(CrossDeviceOps):
    """Reduce with NVIDIA's NCCL between GPUs: `tf.distribute.NcclAllReduce`.

    Args:
        num_packs: Into how many messages the values are packed; the engine chooses by their sizes.
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        _check_packs(num_packs)


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Reduce along the links of one machine's GPUs: `tf.distribute.HierarchicalCopyAllReduce`.

    Args:
        num_packs: Into how many messages the values are packed; the engine chooses by their sizes.
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        _check_packs(num_packs)


class ReductionToOneDevice(CrossDeviceOps):
    """Reduce on one device and copy the result: `tf.distribute.ReductionToOneDevice`.

    Args:
        reduce_to_device: The device to reduce on; results don't depend on it.
        accumulation_fn: A sum of one's own, which is not supported.

    Raises:
        ArgumentError: an `accumulation_fn` is given.
    """

    def __init__(self, reduce_to_device: str | None = None, accumulation_fn: Callable[..., Any] | None = None) -> None:
        super().__init__()
        if accumulation_fn is not None:
            raise ArgumentError(
                "accumulation_fn was given, but values are always summed by the engine", fix="leave accumulation_fn out"
            )
        self._reduce_to_device = reduce_to_device


def _extended(call: str) -> Any:
    context = contexts.current()
    if context is None or not context.is_cross_replica:
        raise ContextError(
            f"CrossDeviceOps.{call} was called where no strategy acts for all replicas",
            fix="call it inside `with strategy.scope():`, outside strategy.run()",
        )
    return context.strategy.extended


def _check_packs(num_packs: int) -> None:
    if num_packs < 0:
        raise ArgumentError(f"num_packs={num_packs} is negative", fix="num_packs=1")
