# SPDX-License-Identifier: Apache-2.0
"""Which accelerators this host has, as its drivers say, and whether the framework computes on them."""

from __future__ import annotations

import glob
import importlib.util
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem import launch
from stratagem.doctor._check import Check, failed, ok, warning

__all__ = ["Hardware", "Seen", "devices_check", "find_hardware"]

_QUERY_SECONDS = 10.0
_NOT_CPU = ("cuda", "gpu", "rocm", "tpu")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What this host has, whatever a framework makes of it.

    Attributes:
        num_gpus: How many NVIDIA GPUs have a device file, or answer nvidia-smi.
        driver: The driver's version, or None where it does not answer.
        num_tpus: How many TPU chips have a device file.
        libtpu: Whether the library for TPUs is installed.
    """

    num_gpus: int = 0
    driver: str | None = None
    num_tpus: int = 0
    libtpu: bool = False


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the framework computes on.

    Attributes:
        devices: Its devices, such as "GPU:0 NVIDIA H200".
        platform: "cpu", "gpu" or "tpu".
        built_for: What the framework's build can drive, such as "CUDA 13.0", or "" for the CPU alone.
        problem: Why it did not start, or "".
    """

    devices: tuple[str, ...] = ()
    platform: str = "cpu"
    built_for: str = ""
    problem: str = ""


def find_hardware() -> Hardware:
    """Look at device files and drivers."""
    listed, driver = _nvidia_smi()
    libtpu = importlib.util.find_spec("libtpu") is not None
    chips = glob.glob("/dev/accel[0-9]*")
    # Other devices are passed to virtual machines through vfio too, so without libtpu that is no sign of a TPU.
    if not chips and libtpu:
        chips = glob.glob("/dev/vfio/[0-9]*")
    return Hardware(
        num_gpus=max(launch.num_gpus({}), listed),
        driver=driver,
        num_tpus=len(chips),
        libtpu=libtpu,
    )


def devices_check(backend: str, hardware: Hardware, seen: Seen, environ: Mapping[str, str]) -> Check:
    """D03: the framework computes on the accelerators that are there."""
    if seen.problem:
        return failed(
            "D03", f"{backend} does not start: {seen.problem}", f"python -c 'import {backend}' shows it whole"
        )
    if seen.platform == "cpu" and hardware.num_gpus:
        return _gpus_unused(backend, hardware, seen, environ)
    if seen.platform == "cpu" and hardware.num_tpus:
        return _tpus_unused(backend, hardware, environ)
    with_driver = f"; driver {hardware.driver}" if hardware.driver and seen.platform == "gpu" else ""
    build = f"; {backend} for {seen.built_for}" if seen.built_for else ""
    return ok("D03", ", ".join(seen.devices) + with_driver + build)


def _gpus_unused(backend: str, hardware: Hardware, seen: Seen, environ: Mapping[str, str]) -> Check:
    text = f"this host has {hardware.num_gpus} GPU{'s' * (hardware.num_gpus > 1)}, but {backend} computes on the CPU"
    visible, platforms = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("JAX_PLATFORMS")
    if visible is not None and _hides_all(visible, hardware.num_gpus):
        return warning("D03", f"{text}: CUDA_VISIBLE_DEVICES={visible!r} hides them", "unset CUDA_VISIBLE_DEVICES")
    if backend == "jax" and platforms and not any(kind in platforms.lower() for kind in _NOT_CPU):
        return warning("D03", f"{text}: JAX_PLATFORMS={platforms!r} leaves them out", "unset JAX_PLATFORMS")
    if not seen.built_for:
        packages = {"torch": "a build of torch for CUDA from pytorch.org", "jax": "pip install 'jax[cuda13]'"}
        return failed("D03", f"{text}: the {backend} that is installed is for the CPU alone", packages[backend])
    if hardware.driver is None:
        return failed("D03", f"{text}: the driver does not answer", "nvidia-smi says why; install or load the driver")
    return failed(
        "D03",
        f"{text}: {backend} is for {seen.built_for}, and the driver is {hardware.driver}",
        "install a newer driver, or a build for an older CUDA",
    )


def _hides_all(visible: str, num_gpus: int) -> bool:
    """Whether CUDA finds no GPU by this list, which ends for it at the first entry that is none."""
    first = visible.partition(",")[0].strip()
    return not first or first.startswith("-") or (first.isdecimal() and int(first) >= num_gpus)


def _tpus_unused(backend: str, hardware: Hardware, environ: Mapping[str, str]) -> Check:
    text = (
        f"this host has {hardware.num_tpus} TPU chip{'s' * (hardware.num_tpus > 1)}, but {backend} computes on the CPU"
    )
    platforms = environ.get("JAX_PLATFORMS")
    if backend != "jax":
        return warning("D03", f"{text}: only the jax backend drives TPUs", "--backend jax, or export KERAS_BACKEND=jax")
    if platforms and "tpu" not in platforms.lower():
        return warning("D03", f"{text}: JAX_PLATFORMS={platforms!r} leaves them out", "unset JAX_PLATFORMS")
    if not hardware.libtpu:
        return failed("D03", f"{text}: libtpu is not installed", "pip install 'stratagem[tpu]'")
    return failed("D03", f"{text}", "end the process that holds the TPU; one process can use it at a time")


def _nvidia_smi() -> tuple[int, str | None]:
    """How many GPUs nvidia-smi lists, and the driver's version; none where it is absent or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0, None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_QUERY_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return 0, None
    lines = answer.stdout.split()
    return len(lines), lines[0] if lines else None
