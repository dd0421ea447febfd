# SPDX-License-Identifier: Apache-2.0
"""Tasks that a launcher has numbered, all of them workers."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._own_task import OwnTaskResolver

__all__ = ["WORKER", "NumberedResolver", "Tasks"]

WORKER = "worker"


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """The tasks of a job, by rank.

    Attributes:
        addresses: Where they are.
        rank: Which of them this process is.
        local: Which of those on its host it is, and how many there are.
    """

    addresses: tuple[str, ...]
    rank: int
    local: tuple[int, int] = (0, 1)

    @classmethod
    def behind(cls, first: str, *, rank: int, num_tasks: int, local: tuple[int, int] = (0, 1)) -> Tasks:
        """Tasks of which only the first one's address is known; the others stand as task-1, task-2 and so on.

        Args:
            first: Host and port of rank 0.
            rank: Which of them this process is.
            num_tasks: How many there are.
            local: Which of those on its host it is, and how many there are.
        """
        others = (f"task-{index}" for index in range(1, num_tasks))
        return cls(addresses=(first, *others), rank=rank, local=local)

    def cluster_spec(self) -> ClusterSpec:
        """The tasks as workers."""
        return ClusterSpec({WORKER: self.addresses})


class NumberedResolver(OwnTaskResolver):
    """A resolver of tasks that are known once it is made."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._task_type = WORKER
        self._task_id = tasks.rank

    def cluster_spec(self) -> ClusterSpec:
        """The tasks, all of them workers."""
        return self._tasks.cluster_spec()

    def local_tasks(self) -> tuple[int, int]:
        """Which of the tasks on its host this one is, and how many there are (not in `tf.distribute`)."""
        return self._tasks.local

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cluster_spec()}, {self.task_type}:{self.task_id})"
