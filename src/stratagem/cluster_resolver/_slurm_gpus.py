# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node are divided among the Slurm tasks that share it."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem.errors import ArgumentError

__all__ = ["GpuShare", "gpu_share"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ON_NODE = "SLURM_GPUS_ON_NODE"
_PER_TASK = "SLURM_GPUS_PER_TASK"


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """The GPUs of one task.

    Attributes:
        per_task: How many each task has.
        visible: The names of this task's, for CUDA_VISIBLE_DEVICES; None where that need not be set.
    """

    per_task: int
    visible: tuple[str, ...] | None


def gpu_share(
    environ: Mapping[str, str], *, per_node: int | None, per_task: int | None, most_tasks: int, local: int
) -> GpuShare:
    """The GPUs of this task.

    Args:
        environ: All variables.
        per_node: How many GPUs a node has, or None to ask Slurm and CUDA.
        per_task: How many a task has, or None for what Slurm says, or else the same number for all of a node.
        most_tasks: How many tasks the node with the most of them has.
        local: This task's number on its node.

    Raises:
        ArgumentError: the tasks of a node want more GPUs than it has.
    """
    listed = [entry.strip() for entry in environ.get(VISIBLE, "").split(",") if entry.strip()]
    if per_node is None:
        per_node = _count(environ.get(_ON_NODE)) or len(listed) or _num_device_files()
    if per_task is None:
        per_task = _count(environ.get(_PER_TASK)) or per_node // most_tasks
    if per_task * most_tasks > per_node:
        raise ArgumentError(
            f"{most_tasks} tasks of a node with {per_task} GPUs each want more than its {per_node} GPUs",
            fix=f"gpus_per_task={per_node // most_tasks}, or fewer tasks on a node",
        )
    # Slurm has shown this task its own GPUs alone where the list is no longer than that.
    if not per_task or (listed and len(listed) <= per_task):
        return GpuShare(per_task=per_task, visible=None)
    # A job that has a part of the node's GPUs has their names in the list.
    names = listed or [str(index) for index in range(per_node)]
    mine = names[local * per_task : (local + 1) * per_task]
    if len(mine) < per_task:
        raise ArgumentError(
            f"{VISIBLE}={environ[VISIBLE]} lists too few GPUs for task {local} of this node, which has {per_task} each",
            fix="gpus_per_node is the number of GPUs that the job has on a node",
        )
    return GpuShare(per_task=per_task, visible=tuple(mine))


def _count(text: str | None) -> int:
    """The number in "2", "gpu:2" or "a100:2"; 0 where there is none."""
    found = re.search(r"(\d+)$", text or "")
    return int(found.group(1)) if found else 0


def _num_device_files() -> int:
    return len(glob.glob("/dev/nvidia[0-9]*"))
