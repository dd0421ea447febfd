# SPDX-License-Identifier: Apache-2.0
"""A strategy that puts everything on one device."""

from __future__ import annotations

from stratagem._core import device_names, env
from stratagem.engines import select
from stratagem.errors import LaunchError
from stratagem.strategies._on_devices import OnDevicesExtended
from stratagem.strategies._strategy import Strategy

__all__ = ["OneDeviceStrategy"]


class OneDeviceExtended(OnDevicesExtended):
    """`extended` of a `OneDeviceStrategy`."""

    wraps_single_values = False

    def __init__(self, container_strategy: Strategy, device: str) -> None:
        engine, name = select.engine(), device_names.canonical(device)
        device_names.check_present((name,), engine.all_devices())
        job = env.job()
        if job is not None and job.world_size > 1 and not engine.capabilities.many_replicas_per_process:
            raise LaunchError(
                f"OneDeviceStrategy has 1 replica, but this job has {job.world_size} processes",
                fix="start the script with: stratagem run --replicas 1 script.py",
            )
        super().__init__(container_strategy, engine, (name,))


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
