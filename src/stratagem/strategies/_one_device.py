# SPDX-License-Identifier: Apache-2.0
"""A strategy that puts everything on one device."""

from __future__ import annotations

from stratagem._core import device_names, env
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.errors import LaunchError
from stratagem.strategies._extended import StrategyExtended
from stratagem.strategies._strategy import Strategy

__all__ = ["OneDeviceStrategy"]


class OneDeviceExtended(StrategyExtended):
    """`extended` of a `OneDeviceStrategy`."""

    def __init__(self, container_strategy: Strategy, device: str) -> None:
        super().__init__(container_strategy)
        self._engine = select.engine()
        self._device = device_names.canonical(device)
        device_names.check_present((self._device,), self._engine.all_devices())
        job = env.job()
        if job is not None and job.world_size > 1 and not self._engine.capabilities.many_replicas_per_process:
            raise LaunchError(
                f"OneDeviceStrategy has 1 replica, but this job has {job.world_size} processes",
                fix="start the script with: stratagem run --replicas 1 script.py",
            )

    @property
    def engine(self) -> Engine:
        """The engine that drives the device."""
        return self._engine

    @property
    def devices(self) -> tuple[str, ...]:
        """The device."""
        return (self._device,)


class OneDeviceStrategy(Strategy):
    """Train on one device, to try a program before it is distributed: `tf.distribute.OneDeviceStrategy`.

    Args:
        device: The device's name, such as "GPU:0" or "/cpu:1".

    Raises:
        DeviceError: this host has no such device.

    >>> from stratagem.engines import select
    >>> from stratagem.testing.fake_engine import FakeEngine
    >>> with select.use(FakeEngine(2)):
    ...     OneDeviceStrategy("/cpu:1")
    OneDeviceStrategy(engine=fake, devices=('CPU:1',), replicas=1)
    """

    def __init__(self, device: str) -> None:
        super().__init__(OneDeviceExtended(self, device))
