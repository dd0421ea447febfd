# SPDX-License-Identifier: Apache-2.0
"""What every resolver answers: `tf.distribute.cluster_resolver.ClusterResolver`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from stratagem.cluster_resolver._cluster_spec import ClusterSpec

__all__ = ["ClusterResolver"]


class ClusterResolver(ABC):
    """Where the tasks of a cluster are, and which of them this process is. Subclass it for a cluster of your own."""

    _task_type: str | None = None
    _task_id: int | None = None

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The cluster's tasks and their addresses."""

    @abstractmethod
    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of one task, or of the one that leads.

        Args:
            task_type: The task's job.
            task_id: The task's number.
            rpc_layer: The protocol to put before the address, such as "grpc".
        """

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """How many accelerators a task has, by their kind; a resolver that knows of none says so.

        Args:
            task_type: The task's job.
            task_id: The task's number.
            config_proto: TensorFlow 1 only, and not looked at.
        """
        del task_type, task_id, config_proto
        return {}

    def local_tasks(self) -> tuple[int, int]:
        """Which of the tasks on its host this one is, and how many there are (not in `tf.distribute`).

        The host's devices are divided by it. It is (0, 1) where nothing says that tasks share a host.
        """
        return 0, 1

    @property
    def environment(self) -> str:
        """What kind of place the cluster runs in, or "" if there is nothing to tell."""
        return ""

    @property
    def task_type(self) -> str | None:
        """The job that this process is a task of, or None where the resolver does not know."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's number among the tasks of its job, or None where the resolver does not know."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id
