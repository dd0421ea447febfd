# SPDX-License-Identifier: Apache-2.0
"""Where and with what a figure was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

_PACKAGES = ("stratagem", "keras", "torch", "jax", "tensorflow-cpu", "tensorflow", "numpy")


def describe() -> str:
    """Two lines to print above figures."""
    versions = [f"{name} {version}" for name in _PACKAGES if (version := _version(name))]
    system = f"{platform.system()} {platform.release()}"
    return (
        f"machine: {_cpu()}, {len(os.sched_getaffinity(0))} cores, {system}; load before {os.getloadavg()[0]:.2f}\n"
        f"versions: Python {platform.python_version()}, {', '.join(versions)}"
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
