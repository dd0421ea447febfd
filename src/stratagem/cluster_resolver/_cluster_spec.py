# SPDX-License-Identifier: Apache-2.0
"""Which tasks a cluster has, and where they are: the counterpart of `tf.train.ClusterSpec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratagem.errors import ArgumentError, ArgumentTypeError

__all__ = ["ClusterSpec"]

_EXAMPLE = 'ClusterSpec({"worker": ["host-a:2222", "host-b:2222"]})'


class ClusterSpec:
    """The addresses of a cluster's tasks, by job: `tf.train.ClusterSpec`.

    There are no protocol buffers here: `as_cluster_def` is left out, and a `ClusterDef` is not taken.

    Args:
        cluster: For each job its tasks' addresses: all of them in order, or a dict of some by their numbers. Another
            ClusterSpec is taken too.

    Raises:
        ArgumentTypeError: `cluster` is none of these.
        ArgumentError: a job has a task that is no number of 0 or more.

    >>> cluster = ClusterSpec({"worker": ["host-a:2222", "host-b:2222"], "ps": {3: "host-c:2222"}})
    >>> cluster.num_tasks("worker"), cluster.task_address("ps", 3)
    (2, 'host-c:2222')
    """

    def __init__(self, cluster: Mapping[str, Sequence[str] | Mapping[int, str]] | ClusterSpec) -> None:
        if isinstance(cluster, ClusterSpec):
            self._jobs = {job: dict(tasks) for job, tasks in cluster._jobs.items()}
        elif isinstance(cluster, Mapping):
            self._jobs = {_job_name(job): _tasks(job, tasks) for job, tasks in cluster.items()}
        else:
            raise ArgumentTypeError(f"cluster={cluster!r:.100} is not a dict of jobs", fix=_EXAMPLE)

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """For each job its tasks' addresses: a list, or a dict by number if some are left out or there are none."""
        return {job: list(tasks.values()) if _is_dense(tasks) else dict(tasks) for job, tasks in self._jobs.items()}

    def num_tasks(self, job_name: str) -> int:
        """How many tasks a job has.

        Args:
            job_name: The job.

        Raises:
            ArgumentError: the cluster has no such job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The numbers of a job's tasks, in order.

        Args:
            job_name: The job.

        Raises:
            ArgumentError: the cluster has no such job.
        """
        return list(self._job(job_name))

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks by number, with None for a number that is left out.

        Args:
            job_name: The job.

        Raises:
            ArgumentError: the cluster has no such job.
        """
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of one task.

        Args:
            job_name: The task's job.
            task_index: The task's number.

        Raises:
            ArgumentError: the cluster has no such task.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            known = ", ".join(map(str, tasks)) or "none"
            raise ArgumentError(f"the job {job_name!r} has no task {task_index}", fix=f"its tasks are: {known}")
        return tasks[task_index]

    def _job(self, job_name: str) -> Mapping[int, str]:
        if job_name not in self._jobs:
            raise ArgumentError(
                f"the cluster has no job {job_name!r}", fix=f"its jobs are: {', '.join(self._jobs) or 'none'}"
            )
        return self._jobs[job_name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == (other._jobs if isinstance(other, ClusterSpec) else other)

    def __hash__(self) -> int:
        return hash(tuple(sorted((job, tuple(tasks.items())) for job, tasks in self._jobs.items())))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"


def _job_name(job: object) -> str:
    if not isinstance(job, str):
        raise ArgumentTypeError(f"the name of the job {job!r} is not a string", fix=_EXAMPLE)
    return job


def _tasks(job: str, tasks: object) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        numbered = {_number(job, index): address for index, address in tasks.items()}
    elif isinstance(tasks, list | tuple):
        numbered = dict(enumerate(tasks))
    else:
        raise ArgumentTypeError(f"the tasks of the job {job!r} are no list of addresses: {tasks!r:.100}", fix=_EXAMPLE)
    for index, address in numbered.items():
        if not isinstance(address, str):
            raise ArgumentTypeError(f"the address of {job}:{index} is not a string: {address!r:.100}", fix=_EXAMPLE)
    return dict(sorted(numbered.items()))


def _number(job: str, index: object) -> int:
    # JSON has no numbers as keys, so TF_CONFIG brings them as text.
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
        return index
    raise ArgumentError(f"the job {job!r} has a task {index!r}, which is no number of 0 or more", fix=_EXAMPLE)


def _is_dense(tasks: Mapping[int, str]) -> bool:
    return bool(tasks) and list(tasks) == list(range(len(tasks)))
