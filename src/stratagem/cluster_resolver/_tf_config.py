# SPDX-License-Identifier: Apache-2.0
"""The variable TF_CONFIG, as TensorFlow reads it, and those of its tasks that train in step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.errors import ArgumentError, StratagemError

__all__ = ["TFConfig", "cluster_of", "from_tf_config", "read"]

_IN_STEP = ("chief", "worker")  # the order of their ranks
_EVALUATOR = "evaluator"
_EXAMPLE = '{"cluster": {"worker": ["host-a:2222", "host-b:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True, kw_only=True)
class TFConfig:
    """What TF_CONFIG says.

    Attributes:
        jobs: For each job its tasks' addresses, as they stand there.
        task: This process's task; it has "type" and "index", or is empty.
        rpc_layer: The protocol between the tasks, or None.
        session_master: The address that stands for every task's, or None.
    """

    jobs: Mapping[str, Any]
    task: Mapping[str, Any]
    rpc_layer: str | None
    session_master: str | None

    @property
    def cluster(self) -> ClusterSpec:
        """The jobs."""
        return ClusterSpec({job: _addresses(self.jobs, job) for job in self.jobs})

    @property
    def task_type(self) -> str | None:
        """The job of this process's task, or None."""
        return str(self.task["type"]) if "type" in self.task else None

    @property
    def task_id(self) -> int | None:
        """The number of this process's task, or None."""
        return _number(self.task["index"]) if "index" in self.task else None


def read() -> TFConfig | None:
    """What TF_CONFIG says, or None if it is not set.

    Raises:
        ArgumentError: it is not what TensorFlow reads.
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
    jobs, task = config.get("cluster") or {}, config.get("task") or {}
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise _unreadable("has a cluster or a task that is not a dict")
    return TFConfig(
        jobs=jobs, task=task, rpc_layer=config.get("rpc_layer"), session_master=config.get("session_master")
    )


def from_tf_config() -> Cluster | None:
    """The tasks that train in step, or None where this process trains alone.

    It does so without TF_CONFIG, in a cluster of one task, and as the evaluator, which takes no part in the steps.

    Raises:
        ArgumentError: TF_CONFIG is not what TensorFlow reads.
    """
    config = read()
    if config is None or not config.jobs:
        return None
    if config.task_type is None:
        raise _unreadable("names a cluster, but not which task this process is")
    return cluster_of(config.jobs, config.task_type, config.task_id or 0)


def cluster_of(jobs: Mapping[str, Sequence[str] | Mapping[int, str]], task_type: str, task_id: int) -> Cluster | None:
    """The tasks of `jobs` that train in step, seen from one of them; None where that one trains alone.

    Args:
        jobs: For each job its tasks' addresses, in order or by their numbers.
        task_type: The job of the task that sees them.
        task_id: Its number.

    Raises:
        ArgumentError: there is no such task, or it is none that trains in step, or two have one address.
    """
    if task_type == _EVALUATOR:
        return None
    if task_type not in _IN_STEP:
        raise ArgumentError(
            f"a task of type {task_type!r} does not train in step; {' and '.join(_IN_STEP)} do",
            fix=f"give this process a task such as {_EXAMPLE}",
        )
    tasks = tuple((f"{job}:{index}", address) for job in _IN_STEP for index, address in _addresses(jobs, job).items())
    names = [name for name, _ in tasks]
    mine = f"{task_type}:{task_id}"
    if mine not in names:
        raise ArgumentError(
            f"the cluster has no task {mine}; it has {', '.join(names) or 'none that trains in step'}",
            fix="give each process the number of one of the cluster's tasks",
        )
    _check_distinct(tasks)
    return Cluster(tasks=tasks, rank=names.index(mine)) if len(tasks) > 1 else None


def _addresses(jobs: Mapping[str, Any], job: str) -> Mapping[int, str]:
    try:
        spec = ClusterSpec({job: jobs.get(job) or ()})
    except StratagemError:
        raise _unreadable(f"has no list of addresses for {job!r}") from None
    return {index: spec.task_address(job, index) for index in spec.task_indices(job)}


def _check_distinct(tasks: Sequence[tuple[str, str]]) -> None:
    address, count = Counter(address for _, address in tasks).most_common(1)[0]
    if count > 1:
        names = [name for name, theirs in tasks if theirs == address]
        raise ArgumentError(
            f"{' and '.join(names)} have the same address {address}", fix="give each task an address of its own"
        )


def _number(index: object) -> int:
    # Some cluster managers write it as a string.
    if isinstance(index, int) and not isinstance(index, bool):
        return index
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    raise _unreadable(f"has the task index {index!r}, which is no number")


def _unreadable(why: str) -> ArgumentError:
    return ArgumentError(f"{env.TF_CONFIG} {why}", fix=f"{env.TF_CONFIG}='{_EXAMPLE}'")
