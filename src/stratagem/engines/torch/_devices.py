# SPDX-License-Identifier: Apache-2.0
"""The devices of this host, by TensorFlow's names."""

from __future__ import annotations

import torch

from stratagem._core import env


def all_devices() -> tuple[str, ...]:
    """Every logical device: GPUs first, then CPUs."""
    return (*_gpus(), *_cpus())


def default_devices() -> tuple[str, ...]:
    """What a strategy uses when it is given no devices: all GPUs, else all logical CPU devices.

    Whoever asked for a number of CPU devices wants those, on a machine with GPUs too.
    """
    if env.cpu_devices() is not None:
        return _cpus()
    return _gpus() or _cpus()


def torch_device(name: str) -> torch.device:
    """The torch device behind a name such as "GPU:1"; all logical CPU devices are torch's one CPU."""
    kind, _, index = name.partition(":")
    return torch.device("cpu") if kind == "CPU" else torch.device("cuda", int(index))


def _gpus() -> tuple[str, ...]:
    return tuple(f"GPU:{index}" for index in range(torch.cuda.device_count()))


def _cpus() -> tuple[str, ...]:
    return tuple(f"CPU:{index}" for index in range(env.cpu_devices() or 1))
