# SPDX-License-Identifier: Apache-2.0
"""Checks of this host that need no framework: versions, threads, shared memory."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from stratagem import launch
from stratagem._core import env
from stratagem.doctor._check import Check, failed, ok, skipped, warning
from stratagem.errors import BackendError

__all__ = [
    "backend_check",
    "chosen_backend",
    "num_quota_cores",
    "shm_check",
    "threads_check",
    "versions",
    "versions_check",
]

_OF_BACKEND = {"torch": ("torch",), "jax": ("jax", "jaxlib")}
_NEEDED = ("stratagem", "keras", "numpy")
_SHM = Path("/dev/shm")
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MIB = 2**20
_SMALL_SHM_BYTES = 512 * _MIB


def versions(backend: str | None) -> dict[str, str]:
    """The version of Python and of each package that matters, "" where it is not installed."""
    names = (*_NEEDED, *_OF_BACKEND.get(backend or "", ()))
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def versions_check(found: Mapping[str, str]) -> Check:
    """D01: what is installed."""
    missing = [name for name, version in found.items() if not version]
    if missing:
        return failed(
            "D01", f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            f"pip install {' '.join(missing)}",
        )  # fmt: skip
    return ok("D01", ", ".join(f"{name} {version}" for name, version in found.items()))


def chosen_backend(wanted: str | None) -> str | BackendError:
    """The backend that a job started here would use, or why there is none."""
    try:
        return wanted or launch.choose_backend(env.inherited())
    except BackendError as error:
        return error


def backend_check(chosen: str | BackendError) -> Check:
    """D02: a backend is chosen, and installed."""
    if isinstance(chosen, BackendError):
        return failed("D02", chosen.problem, chosen.fix or "pip install 'stratagem[torch]'")
    if importlib.util.find_spec(chosen) is None:
        return failed("D02", f"the backend {chosen} is not installed", f"pip install 'stratagem[{chosen}]'")
    named = env.keras_backend()
    if named and named != chosen:
        return warning(
            "D02",
            f"--backend {chosen} was asked for, and {env.KERAS_BACKEND} is {named}, which your program would use",
            f"export {env.KERAS_BACKEND}={chosen}, or start with: stratagem run --backend {chosen}",
        )
    return ok("D02", chosen + ("" if named else f" ({env.KERAS_BACKEND} is not set)"))


def threads_check(num_cores: int, num_quota_cores: float | None, threads: str | None) -> Check:
    """D04: as many threads as there are cores.

    Args:
        num_cores: How many cores this process may run on.
        num_quota_cores: How many cores' time its container is given, or None for no limit.
        threads: OMP_NUM_THREADS.
    """
    cores, limit = f"{num_cores} core{'' if num_cores == 1 else 's'}", num_cores
    if num_quota_cores is not None and num_quota_cores < num_cores:
        limit = max(1, int(num_quota_cores))
        cores = f"{num_cores} cores, of which this container may use {num_quota_cores:g}"
    advice = f"export OMP_NUM_THREADS={limit}, or for several replicas on this host its share of them"
    if threads is None:
        if limit < num_cores:
            return warning("D04", f"{cores}; with OMP_NUM_THREADS not set, a thread is started for each core", advice)
        return ok("D04", f"{cores}, and OMP_NUM_THREADS is not set")
    text = f"{cores}, and OMP_NUM_THREADS is {threads}"
    first = threads.partition(",")[0].strip()  # one number for each level of nested loops
    if not first.isdecimal() or int(first) < 1:
        return failed("D04", f"OMP_NUM_THREADS={threads!r} is not a number of threads", advice)
    if int(first) > limit:
        return warning("D04", f"{text}: the threads take turns", advice)
    if int(first) == 1 < limit:
        return warning("D04", f"{text}: a process that computes on the CPU uses one core", advice)
    return ok("D04", text)


def num_quota_cores(text: str | None = None) -> float | None:
    """How many cores' time this process's container is given, or None where there is no limit.

    Args:
        text: What the kernel says: microseconds in each period of microseconds.

    >>> num_quota_cores("150000 100000"), num_quota_cores("max 100000")
    (1.5, None)
    """
    if text is None:
        text = _CGROUP_QUOTA.read_text() if _CGROUP_QUOTA.exists() else ""
    quota, _, period = text.strip().partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def shm_check(folder: Path = _SHM) -> Check:
    """D05: there is room for what replicas on one host exchange."""
    if not folder.is_dir():
        return skipped("D05", f"this system has no {folder}")
    room = os.statvfs(folder)
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    return room_check(size, free, folder)


def room_check(size_bytes: int, free_bytes: int, folder: Path = _SHM) -> Check:
    """D05, from the size of the file system and what is free of it."""
    text = f"{free_bytes // _MIB} MiB of {size_bytes // _MIB} MiB are free in {folder}"
    if free_bytes < _SMALL_SHM_BYTES:
        return warning(
            "D05",
            f"only {text}; replicas on one host exchange gradients there, and data loaders batches",
            "start the container with --shm-size=8g (Kubernetes: an emptyDir of medium Memory at /dev/shm), "
            "or delete what was left there",
        )
    return ok("D05", text)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
