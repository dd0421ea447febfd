# SPDX-License-Identifier: Apache-2.0
"""A strategy with one replica on each of several devices of this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

from stratagem._core import contexts, device_names, env
from stratagem._core.enums import ReduceOp
from stratagem._core.options import CommunicationOptions
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.errors import ArgumentError, ArgumentTypeError, DeviceError, LaunchError
from stratagem.launch import become_launcher
from stratagem.strategies._cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from stratagem.strategies._on_devices import OnDevicesExtended
from stratagem.strategies._strategy import Strategy

__all__ = ["MirroredStrategy"]

_logger = logging.getLogger(__name__)
_ENGINES_OPS = (NcclAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice)


class MirroredExtended(OnDevicesExtended):
    """`extended` of a `MirroredStrategy`."""

    def __init__(
        self, container_strategy: Strategy, devices: Sequence[str] | None, cross_device_ops: CrossDeviceOps | None
    ) -> None:
        asked = _asked_devices(devices)
        engine = select.engine()
        chosen = _chosen_devices(engine, asked)
        _check_ops(cross_device_ops, chosen)
        _take_place(engine, chosen)
        super().__init__(container_strategy, engine, chosen)
        self._own_ops = None if type(cross_device_ops) in (NoneType, *_ENGINES_OPS) else cross_device_ops

    def reduce_to(
        self, reduce_op: ReduceOp | str, value: Any, destinations: object, options: CommunicationOptions | None = None
    ) -> Any:
        """As of every strategy, or by the cross-device ops that this one was given."""
        if self._own_ops is None:
            return super().reduce_to(reduce_op, value, destinations, options)
        with self._acting_for_all("reduce_to"):
            return self._own_ops.reduce(reduce_op, value, destinations, options)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Iterable[tuple[Any, object]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """As of every strategy, or by the cross-device ops that this one was given."""
        if self._own_ops is None:
            return super().batch_reduce_to(reduce_op, value_destination_pairs, options)
        with self._acting_for_all("batch_reduce_to"):
            return self._own_ops.batch_reduce(reduce_op, list(value_destination_pairs), options)

    def broadcast_to(self, tensor: Any, destinations: object) -> Any:
        """As of every strategy, or by the cross-device ops that this one was given."""
        if self._own_ops is None:
            return super().broadcast_to(tensor, destinations)
        with self._acting_for_all("broadcast_to"):
            return self._own_ops.broadcast(tensor, destinations)

    def _acting_for_all(self, call: str) -> contextlib.AbstractContextManager[Any]:
        fix = "use get_replica_context().merge_call(...)"
        contexts.require_cross_replica(self._container, f"extended.{call}", fix)
        return self._container.scope()


class MirroredStrategy(Strategy):
    """Train on all devices of one machine in step, each with a copy of the variables: `tf.distribute.MirroredStrategy`.

    With PyTorch every replica is a process. In a script that was started plainly, the first strategy that needs
    several starts the script once per replica and watches over them; `stratagem run script.py` does the same.

    Args:
        devices: Device names, such as `["GPU:0", "GPU:1"]`; all GPUs, or without any all CPU devices, if not given.
        cross_device_ops: `NcclAllReduce()`, `HierarchicalCopyAllReduce()` or `ReductionToOneDevice()`. Their results
            are the same; the engine has one way for each kind of device and takes it.

    Raises:
        DeviceError: a device is unknown, absent or named twice.
        ArgumentError: `devices` is a string.
        ArgumentTypeError: `cross_device_ops` is none.
        LaunchError: the job has another number of processes than devices were named.

    >>> from stratagem.engines import select
    >>> from stratagem.testing.fake_engine import FakeEngine
    >>> with select.use(FakeEngine(4)):
    ...     MirroredStrategy(["/cpu:0", "CPU:2"])
    MirroredStrategy(engine=fake, devices=('CPU:0', 'CPU:2'), replicas=2)
    """

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: CrossDeviceOps | None = None) -> None:
        super().__init__(MirroredExtended(self, devices, cross_device_ops))


def _asked_devices(devices: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(devices, str):
        raise ArgumentError(f"devices={devices!r} is a string, not a list of them", fix=f"devices=[{devices!r}]")
    return tuple(device_names.canonical(name) for name in devices or ())


def _chosen_devices(engine: Engine, asked: tuple[str, ...]) -> tuple[str, ...]:
    if asked:
        device_names.check_present(asked, engine.all_devices())
        return asked
    present = engine.local_devices()
    job = env.job()
    one_each = job is not None and not engine.capabilities.many_replicas_per_process
    wanted = job.world_size if job is not None and one_each else env.replicas()
    if wanted is None:
        return present
    if len(present) < wanted:
        raise DeviceError(
            f"this job has {wanted} {'processes' if one_each else 'replicas'}, "
            f"but this host has {len(present)} devices: {', '.join(present)}",
            fix=f"start with --replicas {len(present)}, or with --cpu-devices {wanted}",
        )
    return present[:wanted]


def _take_place(engine: Engine, devices: Sequence[str]) -> None:
    """See that this process is one of as many as there are replicas, where the engine wants one for each."""
    if engine.capabilities.many_replicas_per_process:
        return
    num_replicas = len(devices)
    job = env.job()
    if job is None:
        if num_replicas > 1:
            become_launcher(num_replicas, on_cpu=all(device.startswith("CPU") for device in devices))
        return
    if job.world_size != num_replicas:
        raise LaunchError(
            f"MirroredStrategy has {num_replicas} replicas, but this job has {job.world_size} processes",
            fix=f"start the script with: stratagem run --replicas {num_replicas} script.py, "
            "or use MirroredStrategy(), which takes a device per process",
        )


def _check_ops(ops: object, devices: Sequence[str]) -> None:
    if ops is None:
        return
    if not isinstance(ops, CrossDeviceOps):
        raise ArgumentTypeError(
            f"cross_device_ops={ops!r} is not a CrossDeviceOps", fix="cross_device_ops=NcclAllReduce(), or leave it out"
        )
    if isinstance(ops, NcclAllReduce) and not all(name.startswith("GPU:") for name in devices):
        _logger.warning("NCCL reduces between GPUs only; the replicas on %s reduce without it", ", ".join(devices))
