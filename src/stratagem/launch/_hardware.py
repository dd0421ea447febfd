# SPDX-License-Identifier: Apache-2.0
"""What this host has, found without loading a framework."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def num_gpus(environ: Mapping[str, str]) -> int:
    """How many GPUs this host offers to a process with the environment `environ`."""
    return count_gpus(environ.get(_VISIBLE), gpu_nodes())


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_nodes() -> Sequence[str]:
    """The device files of this host's GPUs."""
    return sorted(glob.glob("/dev/nvidia[0-9]*"))


def count_gpus(visible: str | None, nodes: Sequence[str]) -> int:
    """How many GPUs there are, given CUDA_VISIBLE_DEVICES and the device files.

    >>> count_gpus("0,2", ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"])
    2
    """
    if visible is None or not nodes:
        return len(nodes)
    count = 0
    for entry in visible.split(","):
        name = entry.strip()
        # As CUDA reads it: the first entry that is no device ends the list. Names such as GPU-8932f937 and
        # MIG-... are taken for present.
        if not name or name.startswith("-") or (name.isdigit() and int(name) >= len(nodes)):
            break
        count += 1
    return count
