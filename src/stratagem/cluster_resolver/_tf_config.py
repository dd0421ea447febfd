# SPDX-License-Identifier: Apache-2.0
"""The cluster in the variable TF_CONFIG, as far as training in step needs it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.errors import ArgumentError

__all__ = ["cluster_of", "from_tf_config"]

_IN_STEP = ("chief", "worker")  # the order of their ranks
_EVALUATOR = "evaluator"
_EXAMPLE = '{"cluster": {"worker": ["host-a:2222", "host-b:2222"]}, "task": {"type": "worker", "index": 0}}'


def from_tf_config() -> Cluster | None:
    """The tasks that train in step, or None where this process trains alone.

    It does so without TF_CONFIG, in a cluster of one task, and as the evaluator, which takes no part in the steps.

    Raises:
        ArgumentError: TF_CONFIG is not what TensorFlow reads.
    """
    text = env.tf_config()
    if text is None:
        return None
    try:
        config = json.loads(text)
    except ValueError:
        raise _unreadable(f"is not JSON: {text!r:.100}") from None
    if not isinstance(config, dict):
        raise _unreadable(f"is not a dict: {text!r:.100}")
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise _unreadable("has a cluster or a task that is not a dict")
    if not cluster:
        return None
    if "type" not in task:
        raise _unreadable("names a cluster, but not which task this process is")
    return cluster_of(cluster, task["type"], _number(task.get("index", 0)))


def cluster_of(jobs: Mapping[str, Sequence[str]], task_type: str, task_id: int) -> Cluster | None:
    """The tasks of `jobs` that train in step, seen from one of them; None where that one trains alone.

    Raises:
        ArgumentError: there is no such task, or it is none that trains in step.
    """
    if task_type == _EVALUATOR:
        return None
    if task_type not in _IN_STEP:
        raise ArgumentError(
            f"a task of type {task_type!r} does not train in step; {' and '.join(_IN_STEP)} do",
            fix=f"give this process a task such as {_EXAMPLE}",
        )
    tasks = tuple(
        (f"{job}:{index}", address) for job in _IN_STEP for index, address in enumerate(_addresses(jobs, job))
    )
    names = [name for name, _ in tasks]
    mine = f"{task_type}:{task_id}"
    if mine not in names:
        raise ArgumentError(
            f"the cluster has no task {mine}; it has {', '.join(names) or 'none that trains in step'}",
            fix="give each process the number of one of the cluster's tasks",
        )
    return Cluster(tasks=tasks, rank=names.index(mine)) if len(tasks) > 1 else None


def _addresses(jobs: Mapping[str, Any], job: str) -> Sequence[str]:
    addresses = jobs.get(job) or ()
    if isinstance(addresses, str) or not all(isinstance(address, str) for address in addresses):
        raise _unreadable(f"has no list of addresses for {job!r}")
    return addresses


def _number(index: object) -> int:
    # Some cluster managers write it as a string.
    if isinstance(index, int) and not isinstance(index, bool):
        return index
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    raise _unreadable(f"has the task index {index!r}, which is no number")


def _unreadable(why: str) -> ArgumentError:
    return ArgumentError(f"{env.TF_CONFIG} {why}", fix=f"{env.TF_CONFIG}='{_EXAMPLE}'")
