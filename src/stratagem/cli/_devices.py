# SPDX-License-Identifier: Apache-2.0
"""`stratagem devices`: what there is to compute on."""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stratagem import launch
from stratagem._core import env
from stratagem.engines import select

_QUERY_SECONDS = 10.0


def show(backend: str | None = None) -> None:
    """Print a table of this host's logical devices.

    Args:
        backend: The Keras backend; None for the one that a job would use.

    Raises:
        BackendError: the Keras backend is not one that Stratagem drives.
    """
    backend = backend or launch.choose_backend(env.inherited())
    launch.set_backend(backend)
    engine = select.engine()
    names = engine.all_devices()
    used = set(engine.local_devices())
    hardware = _hardware(names)
    table = Table("device", "hardware", "used by MirroredStrategy()", title=f"Keras backend: {backend}")
    for name in names:
        table.add_row(name, hardware[name], "yes" if name in used else "no")
    console = Console(file=sys.stdout)
    console.print(table)
    if not any(name.startswith("GPU") for name in names):
        console.print(f"More CPU devices: stratagem run --cpu-devices 4 script.py, or {env.CPU_DEVICES}=4")


def _hardware(names: Sequence[str]) -> dict[str, str]:
    gpus = [name for name in names if name.startswith("GPU")]
    cpus = [name for name in names if not name.startswith("GPU")]
    models = _gpu_models() if gpus else {}
    found = {name: models.get(name.partition(":")[2], "GPU") for name in gpus}
    cores = launch.num_cores()
    model = _cpu_model()
    share = max(1, cores // len(cpus)) if cpus else cores
    return found | dict.fromkeys(cpus, f"{model}, {share} of {cores} cores")


def _cpu_model() -> str:
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_models() -> dict[str, str]:
    """By logical index, what nvidia-smi says of each GPU; nothing where it is absent or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader"]
    try:
        listing = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_QUERY_SECONDS
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in listing]
    visible = env.inherited().get("CUDA_VISIBLE_DEVICES")
    physical = [row[0] for row in rows] if visible is None else [entry.strip() for entry in visible.split(",")]
    models: dict[str, str] = {}
    for index, wanted in enumerate(physical):
        for number, uuid, model, memory in rows:
            if wanted and (wanted == number or uuid.startswith(wanted)):
                models[str(index)] = f"{model}, {memory}"
    return models
