# SPDX-License-Identifier: Apache-2.0
"""The cluster in TF_CONFIG: `tf.distribute.cluster_resolver.TFConfigClusterResolver`."""

from __future__ import annotations

from stratagem.cluster_resolver import _tf_config as tf_config
from stratagem.cluster_resolver._address import with_protocol
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.errors import ArgumentError

__all__ = ["TFConfigClusterResolver"]


class TFConfigClusterResolver(ClusterResolver):
    """Reads the cluster and this process's task from the variable TF_CONFIG, each time it is asked.

    The jobs may be chief, worker, ps and evaluator; the task's index may be a number or text. Without TF_CONFIG the
    cluster is empty. The counterpart of `tf.distribute.cluster_resolver.TFConfigClusterResolver`.

    Args:
        task_type: Used instead of the task's type in TF_CONFIG.
        task_id: Used instead of its index.
        rpc_layer: Used instead of its rpc_layer.
        environment: What `environment` answers; TF_CONFIG is not asked for it.

    Raises:
        ArgumentError: raised by what is asked, if TF_CONFIG is not what TensorFlow reads.

    >>> TFConfigClusterResolver(task_type="worker", task_id=1).task_id
    1
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """The cluster that TF_CONFIG names now; an empty one if it names none."""
        config = tf_config.read()
        return ClusterSpec({}) if config is None else config.cluster

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of one task, by default this process's own; "" where it is alone.

        If TF_CONFIG names a "session_master", it is that.

        Args:
            task_type: The task's job.
            task_id: The task's number.
            rpc_layer: The protocol to put before the address; by default that of the resolver.

        Raises:
            ArgumentError: the cluster has no such task, or nothing says which task is meant.
        """
        config = tf_config.read()
        if config is not None and config.session_master is not None:
            return config.session_master
        cluster = self.cluster_spec()
        if sum(cluster.num_tasks(job) for job in cluster.jobs) <= 1:
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            raise ArgumentError(
                "TF_CONFIG does not say which task this process is", fix='add "task": {"type": "worker", "index": 0}'
            )
        rpc_layer = self.rpc_layer if rpc_layer is None else rpc_layer
        return with_protocol(cluster.task_address(task_type, task_id), rpc_layer)

    @property
    def task_type(self) -> str | None:
        """The job that this process is a task of, or None where nothing says so."""
        if self._task_type is not None:
            return str(self._task_type)
        config = tf_config.read()
        return None if config is None else config.task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's number among the tasks of its job, or None where nothing says so."""
        if self._task_id is not None:
            return int(self._task_id)
        config = tf_config.read()
        return None if config is None else config.task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol that `master` puts before an address, or None."""
        if self._rpc_layer is not None:
            return self._rpc_layer
        config = tf_config.read()
        return None if config is None else config.rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str:
        """What was given as `environment`, or ""."""
        return self._environment or ""
