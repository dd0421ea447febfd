# SPDX-License-Identifier: Apache-2.0
"""The pods of a Kubernetes cluster: `tf.distribute.cluster_resolver.KubernetesClusterResolver`."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from stratagem._core import env
from stratagem.cluster_resolver import _tf_config as tf_config
from stratagem.cluster_resolver._address import join
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._numbered import WORKER
from stratagem.cluster_resolver._own_task import OwnTaskResolver
from stratagem.cluster_resolver._pods import pod_tasks
from stratagem.errors import ArgumentTypeError, LaunchError

__all__ = ["ExecutableLocation", "KubernetesClusterResolver"]

_DEFAULT_LABELS = {WORKER: ["job-name=tensorflow"]}


class ExecutableLocation(enum.Enum):
    """Whether the program itself runs in the Kubernetes cluster."""

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesClusterResolver(OwnTaskResolver):
    """The pods of a job in Kubernetes: from their variables, or from a search for labels.

    Without labels and client it reads what the operators set in each pod: TFJob (TF_CONFIG), PyTorchJob and TrainJob
    (PET_NODE_RANK and others, or RANK and others), JAXJob (PROCESS_ID and others), or the template of a JobSet
    (JOBSET_NAME, REPLICATED_JOB_NAME, NUM_PROCESSES). With labels it asks the Kubernetes API each time for the pods
    that have them, in the order of their names; then `task_type` and `task_id` have to be set. The counterpart of
    `tf.distribute.cluster_resolver.KubernetesClusterResolver`, which has no variables, and takes the addresses of
    the nodes in place of the pods'.

    Args:
        job_to_label_mapping: For each job the labels of its pods, such as {"worker": ["job-name=train"]}.
        tf_server_port: The port of each pod found by its labels, and of the pods of a JobSet.
        rpc_layer: The protocol that `master` puts before an address.
        override_client: Used instead of a `kubernetes.client.CoreV1Api()`.
        executable_location: Where this program runs, which decides how that client is set up.

    Raises:
        ArgumentError: a variable of the pod is missing, or makes no sense.
        ArgumentTypeError: `executable_location` is not a KubernetesExecutableLocation.
        LaunchError: the package kubernetes is not installed, or finds no cluster; raised by `cluster_spec`: a pod does
            not run.

    >>> import os
    >>> from unittest import mock
    >>> names = {"COORDINATOR_ADDRESS": "train-worker-0", "COORDINATOR_PORT": "6666"}
    >>> with mock.patch.dict(os.environ, names | {"NUM_PROCESSES": "2", "PROCESS_ID": "1"}):
    ...     KubernetesClusterResolver().cluster_spec()
    ClusterSpec({'worker': ['train-worker-0:6666', 'task-1']})
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: ExecutableLocation = ExecutableLocation.WITHIN_CLUSTER,
    ) -> None:
        if not isinstance(executable_location, ExecutableLocation):
            raise ArgumentTypeError(
                f"executable_location={executable_location!r} is not a KubernetesExecutableLocation",
                fix="KubernetesExecutableLocation.WITHIN_CLUSTER or OFF_CLUSTER",
            )
        self._rpc_layer = rpc_layer
        self._port = tf_server_port
        self._local = (0, 1)
        self._client: Any = override_client
        self._labels = job_to_label_mapping or _DEFAULT_LABELS
        self._told: ClusterSpec | None = None
        if not job_to_label_mapping and override_client is None:
            self._read_variables()
        if self._told is None and override_client is None:
            self._client = _client(executable_location)

    def cluster_spec(self) -> ClusterSpec:
        """The job's pods.

        Raises:
            LaunchError: a pod does not run.
        """
        if self._told is not None:
            return self._told
        return ClusterSpec(
            {
                job: [address for label in labels for address in self._addresses(label)]
                for job, labels in self._labels.items()
            }
        )

    def local_tasks(self) -> tuple[int, int]:
        """Which of the tasks in its pod this one is, and how many there are (not in `tf.distribute`)."""
        return self._local

    def _read_variables(self) -> None:
        config = tf_config.read()
        if config is not None and config.jobs:
            self._told, self._task_type, self._task_id = config.cluster, config.task_type, config.task_id
            return
        tasks = pod_tasks(env.inherited(), self._port)
        if tasks is not None:
            self._told, self._task_type, self._task_id = tasks.cluster_spec(), WORKER, tasks.rank
            self._local = tasks.local

    def _addresses(self, label: str) -> list[str]:
        pods = sorted(
            self._client.list_pod_for_all_namespaces(label_selector=label).items, key=lambda pod: pod.metadata.name
        )
        for pod in pods:
            if pod.status.phase != "Running":
                raise LaunchError(
                    f"the pod {pod.metadata.name} with the label {label} does not run: it is {pod.status.phase}",
                    fix="wait until all pods run, and ask for the cluster again",
                )
        return [join(pod.status.pod_ip, self._port) for pod in pods]


def _client(location: ExecutableLocation) -> Any:
    try:
        from kubernetes import client, config  # type: ignore[import-not-found]
    except ImportError as error:
        raise LaunchError(
            f"pods can't be looked for without the package kubernetes ({error}), "
            "and this process has no variables of TFJob, PyTorchJob, TrainJob, JAXJob or JobSet",
            fix="pip install kubernetes, or give override_client",
        ) from error
    try:
        if location is ExecutableLocation.OFF_CLUSTER:
            config.load_kube_config()
        else:
            config.load_incluster_config()
    except config.ConfigException as error:
        raise LaunchError(
            f"the Kubernetes API can't be reached with executable_location={location.name}: {error}",
            fix="KubernetesExecutableLocation.OFF_CLUSTER with a kubeconfig, WITHIN_CLUSTER in a pod",
        ) from error
    return client.CoreV1Api()
