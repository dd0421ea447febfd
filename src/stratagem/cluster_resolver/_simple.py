# SPDX-License-Identifier: Apache-2.0
"""A cluster that the program describes itself: `tf.distribute.cluster_resolver.SimpleClusterResolver`."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem.cluster_resolver._address import with_protocol
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._rpc_layer import RpcLayerResolver
from stratagem.errors import ArgumentTypeError

__all__ = ["SimpleClusterResolver"]


class SimpleClusterResolver(RpcLayerResolver):
    """Answers what it is given: for a cluster that the program knows by itself.

    The counterpart of `tf.distribute.cluster_resolver.SimpleClusterResolver`.

    Args:
        cluster_spec: The cluster.
        master: What `master()` answers when it is asked for no task.
        task_type: The job that this process is a task of.
        task_id: Its number among the tasks of its job.
        environment: What `environment` answers.
        num_accelerators: How many accelerators each task has, by kind, such as {"GPU": 8}.
        rpc_layer: The protocol that `master` puts before an address.

    Raises:
        ArgumentTypeError: `cluster_spec` is not a ClusterSpec, or `master` is not a string.

    >>> cluster = ClusterSpec({"worker": ["host-a:2222", "host-b:2222"]})
    >>> SimpleClusterResolver(cluster, task_type="worker", task_id=1, rpc_layer="grpc").master("worker", 0)
    'grpc://host-a:2222'
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise ArgumentTypeError(
                f"cluster_spec={cluster_spec!r:.100} is not a stratagem.cluster_resolver.ClusterSpec",
                fix="ClusterSpec({...}), or ClusterSpec(yours.as_dict()) for TensorFlow's",
            )
        if not isinstance(master, str):
            raise ArgumentTypeError(f"master={master!r:.100} is not a string", fix='master="host-name:2222"')
        self._cluster_spec = cluster_spec
        self._master = master
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment
        self._num_accelerators = num_accelerators
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The cluster that was given."""
        return self._cluster_spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of one task, or the `master` that was given.

        Args:
            task_type: The task's job; it goes together with `task_id`.
            task_id: The task's number.
            rpc_layer: The protocol to put before the address; by default that of the resolver.

        Raises:
            ArgumentError: the cluster has no such task.
        """
        if task_type is None or task_id is None:
            return with_protocol(self._master, rpc_layer or self._rpc_layer)
        return with_protocol(self._cluster_spec.task_address(task_type, task_id), rpc_layer or self._rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """What was given as `num_accelerators`, the same for each task.

        Args:
            task_type: Not used.
            task_id: Not used.
            config_proto: Not used.
        """
        del task_type, task_id, config_proto
        return {} if self._num_accelerators is None else self._num_accelerators

    @property
    def environment(self) -> str:
        """What was given as `environment`."""
        return self._environment
