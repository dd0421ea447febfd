# SPDX-License-Identifier: Apache-2.0
"""The base of the resolvers whose master is the task that this process is."""

from __future__ import annotations

from stratagem.cluster_resolver._address import with_protocol
from stratagem.cluster_resolver._rpc_layer import RpcLayerResolver

__all__ = ["OwnTaskResolver"]


class OwnTaskResolver(RpcLayerResolver):
    """A resolver that knows a protocol; its master is the task asked for, or else this process's own."""

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of one task, by default this process's own; "" where neither is known.

        Args:
            task_type: The task's job.
            task_id: The task's number.
            rpc_layer: The protocol to put before the address; by default that of the resolver.

        Raises:
            ArgumentError: the cluster has no such task.
        """
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        return with_protocol(self.cluster_spec().task_address(task_type, task_id), rpc_layer or self._rpc_layer)
