# SPDX-License-Identifier: Apache-2.0
"""The devices of this job, by TensorFlow's names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import groupby

import jax

from stratagem import launch
from stratagem._core import env
from stratagem.engines.jax import _libtpu
from stratagem.engines.jax._mesh import Device
from stratagem.errors import ContextError

__all__ = ["Devices"]

# XLA's CPU collectives wait for one another in the threads of a pool as large as the machine; with fewer threads than
# devices they starve, and XLA ends the process. The variable, read when the CPU client starts, sets the pool's size.
_POOL_SIZE = "NPROC"
_PREFIXES = {"gpu": "GPU", "tpu": "TPU", "cpu": "CPU"}


class Devices:
    """The devices of all processes, numbered in the order of the processes. Starts jax, if it has not started yet.

    Args:
        sharers: How many processes share the CPU devices that were asked for.

    Raises:
        ContextError: jax has started before, with fewer CPU devices.
    """

    def __init__(self, sharers: int = 1) -> None:
        self._sharers = sharers
        share = self._share()
        if share is not None:
            # It may have started before; what there is then is looked at below.
            with contextlib.suppress(RuntimeError):
                jax.config.update("jax_num_cpu_devices", share)
        pool_size = str(max(2 * (_expected() or 1), launch.num_cores()))
        with launch.variable_unless_set(_POOL_SIZE, pool_size), _libtpu.may_load():
            jax.devices()
            _cpus()
        self._check_count()

    def all(self) -> tuple[str, ...]:
        """Every logical device: accelerators first, then CPUs."""
        return tuple(self._named())

    def default(self) -> tuple[str, ...]:
        """What a strategy uses when it is given no devices: all accelerators, else all logical CPU devices.

        Whoever asked for a number of CPU devices wants those, on a machine with accelerators too.
        """
        self._check_count()
        names = self.all()
        cpus = tuple(name for name in names if name.startswith("CPU"))
        if env.cpu_devices() is not None:
            return cpus
        return tuple(name for name in names if name not in cpus) or cpus

    def find(self, name: str) -> Device:
        """The device behind a name such as "GPU:1"."""
        return self._named()[name]

    def _named(self) -> dict[str, Device]:
        accelerators = [device for device in jax.devices() if device.platform != "cpu"]
        found: dict[str, Device] = {}
        counts = dict.fromkeys(_PREFIXES.values(), 0)
        for device in [*_in_order(accelerators), *self._used_cpus()]:
            kind = _PREFIXES.get(device.platform)
            if kind is not None:
                found[f"{kind}:{counts[kind]}"] = device
                counts[kind] += 1
        return found

    def _used_cpus(self) -> Iterator[Device]:
        """The CPU devices; of more than were asked for, the first of each process."""
        share = self._share()
        for _, devices in groupby(_cpus(), key=lambda device: device.process_index):
            yield from list(devices)[:share]

    def _check_count(self) -> None:
        asked, share = env.cpu_devices(), self._share()
        present = sum(device.process_index == jax.process_index() for device in _cpus())
        if share is not None and present < share:
            raise ContextError(
                f"{asked} logical CPU devices were asked for, but jax has started with {present * self._sharers}",
                fix=f"ask for them before anything computes with jax, or set {env.CPU_DEVICES}={asked} outside",
            )

    def _share(self) -> int | None:
        """How many of the CPU devices that were asked for are this process's."""
        asked = env.cpu_devices()
        return None if asked is None else max(1, asked // self._sharers)


def _cpus() -> list[Device]:
    try:
        return _in_order(jax.devices("cpu"))
    except RuntimeError:  # JAX_PLATFORMS leaves them out
        return []


def _in_order(devices: list[Device]) -> list[Device]:
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def _expected() -> int | None:
    """How many CPU devices jax is going to have in this process, by whatever says so."""
    configured: int = getattr(jax.config, "jax_num_cpu_devices")  # noqa: B009 - type checkers do not know it
    return configured if configured > 0 else env.xla_cpu_devices()
