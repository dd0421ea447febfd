# SPDX-License-Identifier: Apache-2.0
"""Device names in all of TensorFlow's spellings, and our short form: "GPU:0", "CPU:1"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stratagem.errors import ArgumentTypeError, DeviceError

__all__ = ["canonical", "check_present", "full"]

_NAME = re.compile(
    r"(?:/job:(?P<job>[a-z_]\w*))?(?:/replica:(?P<replica>\d+))?(?:/task:(?P<task>\d+))?"
    r"/?(?:device:)?(?P<type>cpu|gpu|tpu):(?P<index>\d+)",
    re.IGNORECASE,
)


def canonical(name: object) -> str:
    """A device's short name, such as "GPU:0".

    >>> [canonical(name) for name in ("/gpu:0", "CPU:1", "/job:localhost/replica:0/task:0/device:GPU:2")]
    ['GPU:0', 'CPU:1', 'GPU:2']

    Raises:
        ArgumentTypeError: `name` is not a string.
        DeviceError: it is no device name, or names a device of another host.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"a device is {name!r}, not a string", fix='name it like "GPU:0" or "CPU:1"')
    found = _NAME.fullmatch(name.strip())
    if found is None:
        raise DeviceError(f"{name!r} is not a device name", fix='name a device like "GPU:0", "/gpu:0" or "CPU:1"')
    if int(found["replica"] or 0) or int(found["task"] or 0):
        raise DeviceError(
            f"{name!r} is a device of another task than task 0", fix="name devices of this host only, such as GPU:0"
        )
    return f"{found['type'].upper()}:{int(found['index'])}"


def full(name: str) -> str:
    """A device's long name, as TensorFlow's strategies list it.

    >>> full("GPU:0")
    '/job:localhost/replica:0/task:0/device:GPU:0'
    """
    return f"/job:localhost/replica:0/task:0/device:{name}"


def check_present(names: Sequence[str], present: Sequence[str]) -> None:
    """Check that canonical `names` are all among `present` and differ from one another.

    Raises:
        DeviceError: a device is absent or named twice; the text lists those present.
    """
    absent = [name for name in names if name not in present]
    if absent:
        raise DeviceError(
            f"this host has no {_join(absent)}; it has {_join(present)}",
            fix=_more_cpus(absent) or f"use devices out of {list(present)}",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DeviceError(
            f"{_join(twice)} is named more than once in devices={list(names)}", fix="name each device once"
        )


def _more_cpus(absent: Sequence[str]) -> str | None:
    if not all(name.startswith("CPU:") for name in absent):
        return None
    needed = 1 + max(int(name.removeprefix("CPU:")) for name in absent)
    return f"set STRATAGEM_CPU_DEVICES={needed} for {needed} logical CPU devices, or name a device that is there"


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) or "no device"
