# SPDX-License-Identifier: Apache-2.0
"""An instance group of Google Compute Engine: `tf.distribute.cluster_resolver.GCEClusterResolver`."""

from __future__ import annotations

from typing import Any

from stratagem.cluster_resolver._address import join
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._own_task import OwnTaskResolver
from stratagem.errors import ContextError, LaunchError

__all__ = ["GCEClusterResolver"]

_DEFAULT_CREDENTIALS = "default"


class GCEClusterResolver(OwnTaskResolver):
    """The running machines of an instance group, each of them a task, in the order of their addresses as text.

    Google Compute Engine is asked each time. It does not say which task this process is, so each machine is given
    its `task_id`. The counterpart of `tf.distribute.cluster_resolver.GCEClusterResolver`.

    Args:
        project: The project's name.
        zone: The group's zone.
        instance_group: The group's name.
        port: The port of each task.
        task_type: The job that the machines are tasks of.
        task_id: This process's number among them.
        rpc_layer: The protocol that `master` puts before an address.
        credentials: "default" for those of the application, or credentials of google-auth.
        service: Used instead of `googleapiclient.discovery.build("compute", "v1")`.

    Raises:
        LaunchError: the package google-api-python-client is not installed.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int | None = 0,
        rpc_layer: str | None = "grpc",
        credentials: Any = "default",
        service: Any = None,
    ) -> None:
        self._where = {"project": project, "zone": zone}
        self._group = instance_group
        self._port = port
        self._job = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._service: Any = _service(credentials) if service is None else service

    def cluster_spec(self) -> ClusterSpec:
        """The machines that run now."""
        groups = self._service.instanceGroups()
        request = groups.listInstances(
            **self._where, instanceGroup=self._group, body={"instanceState": "RUNNING"}, orderBy="name"
        )
        addresses: list[str] = []
        while request is not None:
            response = request.execute()
            addresses += [self._address(item["instance"]) for item in response.get("items", ())]
            request = groups.listInstances_next(previous_request=request, previous_response=response)
        return ClusterSpec({self._job: sorted(addresses)})

    @property
    def task_type(self) -> str:
        """The job that the machines are tasks of. It can't be set later."""
        return self._job

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        raise ContextError(
            f"the task_type of a GCEClusterResolver can't become {task_type!r}, as it is that of its machines",
            fix=f"GCEClusterResolver(..., task_type={task_type!r})",
        )

    def _address(self, instance: str) -> str:
        found = self._service.instances().get(**self._where, instance=instance.rpartition("/")[2]).execute()
        return join(found["networkInterfaces"][0]["networkIP"], self._port)


def _service(credentials: Any) -> Any:
    try:
        from googleapiclient import discovery  # type: ignore[import-not-found]
    except ImportError as error:
        raise LaunchError(
            f"instance groups can't be looked for without the package google-api-python-client ({error})",
            fix="pip install google-api-python-client, or give service",
        ) from error
    # None stands for the application's own credentials there.
    return discovery.build("compute", "v1", credentials=None if credentials == _DEFAULT_CREDENTIALS else credentials)
