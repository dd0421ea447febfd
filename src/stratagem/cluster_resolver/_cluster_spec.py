# SPDX-License-Identifier: Apache-2.0
"""Which tasks a cluster has, and where they are: the counterpart of `tf.train.ClusterSpec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratagem.errors import ArgumentError

__all__ = ["ClusterSpec"]


class ClusterSpec:
    """The addresses of a cluster's tasks, by job.

    Args:
        cluster: For each job its tasks' addresses, in order.

    >>> ClusterSpec({"worker": ["host-a", "host-b"]}).num_tasks("worker")
    2
    """

    def __init__(self, cluster: Mapping[str, Sequence[str]]) -> None:
        self._jobs = {job: tuple(addresses) for job, addresses in cluster.items()}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, list[str]]:
        """For each job its tasks' addresses."""
        return {job: list(addresses) for job, addresses in self._jobs.items()}

    def num_tasks(self, job_name: str) -> int:
        """How many tasks a job has."""
        return len(self.job_tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The numbers of a job's tasks."""
        return list(range(self.num_tasks(job_name)))

    def job_tasks(self, job_name: str) -> list[str]:
        """The addresses of a job's tasks, in order.

        Raises:
            ArgumentError: the cluster has no such job.
        """
        if job_name not in self._jobs:
            raise ArgumentError(
                f"the cluster has no job {job_name!r}", fix=f"its jobs are: {', '.join(self._jobs) or 'none'}"
            )
        return list(self._jobs[job_name])

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of one task.

        Raises:
            ArgumentError: the cluster has no such task.
        """
        addresses = self.job_tasks(job_name)
        if not 0 <= task_index < len(addresses):
            raise ArgumentError(
                f"the job {job_name!r} has no task {task_index}", fix=f"its tasks are 0 to {len(addresses) - 1}"
            )
        return addresses[task_index]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._jobs.items())))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"
