# SPDX-License-Identifier: Apache-2.0
"""`KubernetesClusterResolver`: on the variables of pods, and on pods found by their labels."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stratagem.cluster_resolver import KubernetesClusterResolver, KubernetesExecutableLocation
from stratagem.errors import ArgumentError, ArgumentTypeError, LaunchError

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
# PyTorchJob "train" with one master, one worker and nprocPerNode: 2; WORLD_SIZE counts processes, PET_NNODES pods.
PYTORCH_JOB = POD | {
    "HOSTNAME": "train-worker-0",
    "MASTER_ADDR": "train-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "4",
    "RANK": "1",
    "PET_MASTER_ADDR": "train-master-0",
    "PET_MASTER_PORT": "23456",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "2",
    "PYTHONUNBUFFERED": "1",
}
OLD_PYTORCH_JOB = {name: value for name, value in PYTORCH_JOB.items() if not name.startswith("PET_")} | {
    "WORLD_SIZE": "2"
}
TORCHRUN_IN_POD = PYTORCH_JOB | {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
JAX_JOB = POD | {
    "HOSTNAME": "train-worker-1",
    "COORDINATOR_ADDRESS": "train-worker-0",
    "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "2",
    "PROCESS_ID": "1",
}
TRAIN_JOB_JAX = POD | {
    "JAX_COORDINATOR_ADDRESS": "train-node-0-0.train:29500",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
    "JOB_COMPLETION_INDEX": "1",
}
JOB_SET = POD | {
    "HOSTNAME": "train-workers-0-1",
    "JOB_COMPLETION_INDEX": "1",
    "JOBSET_NAME": "train",
    "REPLICATED_JOB_NAME": "workers",
    "NUM_PROCESSES": "2",
}


@pytest.mark.parametrize(
    ("variables", "addresses", "rank", "local"),
    [
        (PYTORCH_JOB, ["train-master-0:23456", "task-1"], 1, (0, 1)),
        (OLD_PYTORCH_JOB, ["train-master-0:23456", "task-1"], 1, (0, 1)),
        (TORCHRUN_IN_POD, ["train-master-0:23457", "task-1", "task-2", "task-3"], 3, (1, 2)),
        (JAX_JOB, ["train-worker-0:6666", "task-1"], 1, (0, 1)),
        (TRAIN_JOB_JAX, ["train-node-0-0.train:29500", "task-1"], 1, (0, 1)),
        (JOB_SET, ["train-workers-0-0.train:8470", "train-workers-0-1.train:8470"], 1, (0, 1)),
    ],
    ids=["PyTorchJob", "old PyTorchJob", "torchrun", "JAXJob", "TrainJob with JAX", "JobSet"],
)
def test_the_variables_of_each_operator_are_understood(
    started_with: Any, variables: dict[str, str], addresses: list[str], rank: int, local: tuple[int, int]
) -> None:
    started_with(variables)
    resolver = KubernetesClusterResolver()
    assert resolver.cluster_spec().as_dict() == {"worker": addresses}
    assert (resolver.task_type, resolver.task_id, resolver.local_tasks()) == ("worker", rank, local)
    assert resolver.master("worker", 0) == f"grpc://{addresses[0]}"


def test_master_addr_stands_in_for_pet_master_addr(started_with: Any) -> None:
    started_with(PYTORCH_JOB | {"PET_MASTER_ADDR": "", "MASTER_PORT": "2222"})
    assert KubernetesClusterResolver(rpc_layer=None).master("worker", 0) == "train-master-0:2222"


def test_tfjob_sets_tf_config(started_with: Any) -> None:
    jobs = {"chief": ["train-chief-0.ns.svc:2222"], "worker": ["train-worker-0.ns.svc:2222"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 0}, "environment": "cloud"}
    started_with(POD | {"TF_CONFIG": json.dumps(config)})
    resolver = KubernetesClusterResolver()
    assert resolver.cluster_spec().as_dict() == jobs
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (PYTORCH_JOB | {"PET_NNODES": "1:4"}, "PET_NNODES='1:4' leaves open how many pods.*\n  fix: start .* torchrun"),
        (
            PYTORCH_JOB | {"PET_NODE_RANK": "2"},
            "PET_NODE_RANK=2 is not below PET_NNODES=2\n  fix: leave both to PyTorch",
        ),
        (PYTORCH_JOB | {"PET_MASTER_PORT": ""}, "PET_MASTER_PORT is not set, which PyTorchJob sets"),
        (JAX_JOB | {"NUM_PROCESSES": ""}, "NUM_PROCESSES is not set, which JAXJob sets"),
        (JAX_JOB | {"COORDINATOR_PORT": ""}, "COORDINATOR_PORT is not set, which JAXJob sets"),
        (JAX_JOB | {"COORDINATOR_ADDRESS": "host:x"}, "COORDINATOR_ADDRESS='host:x' does not name a host and a port"),
        (JOB_SET | {"NUM_PROCESSES": ""}, "how many pods the JobSet has\n  fix: set NUM_PROCESSES to its parallelism"),
        (JOB_SET | {"JOB_INDEX": "1"}, "JOB_INDEX is not 0.*\n  fix: set COORDINATOR_ADDRESS"),
        (JOB_SET | {"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX=2 is not below NUM_PROCESSES=2"),
    ],
    ids=str,
)
def test_variables_that_make_no_sense_are_refused(started_with: Any, variables: dict[str, str], text: str) -> None:
    started_with(variables)
    with pytest.raises(ArgumentError, match=text):
        KubernetesClusterResolver()


class Client:
    """The one method of `kubernetes.client.CoreV1Api` that is called."""

    def __init__(self, **pods: list[tuple[str, str, str]]) -> None:
        self._pods = pods

    def list_pod_for_all_namespaces(self, *, label_selector: str) -> Any:
        name, _, value = label_selector.partition("=")
        assert name == "job-name"
        return SimpleNamespace(
            items=[
                SimpleNamespace(
                    metadata=SimpleNamespace(name=pod),
                    status=SimpleNamespace(phase=phase, pod_ip=ip, host_ip="192.168.1.1"),
                )
                for pod, ip, phase in self._pods[value]
            ]
        )


def test_pods_are_found_by_their_labels_in_the_order_of_their_names(started_with: Any) -> None:
    started_with(JAX_JOB)
    client = Client(
        a=[("a-1", "10.1.0.2", "Running"), ("a-0", "10.1.0.1", "Running")],
        b=[("b-0", "10.1.0.3", "Running")],
        p=[("p-0", "10.1.0.4", "Running")],
    )
    labels = {"worker": ["job-name=a", "job-name=b"], "ps": ["job-name=p"]}
    resolver = KubernetesClusterResolver(labels, tf_server_port=2222, override_client=client)
    assert resolver.cluster_spec().as_dict() == {
        "worker": ["10.1.0.1:2222", "10.1.0.2:2222", "10.1.0.3:2222"],
        "ps": ["10.1.0.4:2222"],
    }
    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    resolver.task_type, resolver.task_id = "worker", 2
    assert resolver.master() == "grpc://10.1.0.3:2222"


def test_the_default_label_is_that_of_tensorflow(started_with: Any) -> None:
    started_with(JAX_JOB)
    resolver = KubernetesClusterResolver(override_client=Client(tensorflow=[("t-0", "10.1.0.9", "Running")]))
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.1.0.9:8470"]}


def test_a_pod_that_does_not_run_is_named(started_with: Any) -> None:
    client = Client(a=[("a-0", "10.1.0.1", "Running"), ("a-1", "", "Pending")])
    resolver = KubernetesClusterResolver({"worker": ["job-name=a"]}, override_client=client)
    with pytest.raises(
        LaunchError, match="the pod a-1 with the label job-name=a does not run: it is Pending\n  fix: wait"
    ):
        resolver.cluster_spec()


class ConfigException(Exception):
    """The one of `kubernetes.config`."""


def kubernetes_package(**loaders: Callable[[], None]) -> Any:
    package: Any = types.ModuleType("kubernetes")
    package.config = SimpleNamespace(ConfigException=ConfigException, **loaders)
    package.client = SimpleNamespace(CoreV1Api=lambda: Client(a=[("a-0", "10.1.0.1", "Running")]))
    return package


@pytest.mark.parametrize(
    ("location", "loader"),
    [
        (KubernetesExecutableLocation.WITHIN_CLUSTER, "load_incluster_config"),
        (KubernetesExecutableLocation.OFF_CLUSTER, "load_kube_config"),
    ],
)
def test_the_client_is_set_up_for_where_the_program_runs(
    started_with: Any, monkeypatch: pytest.MonkeyPatch, location: KubernetesExecutableLocation, loader: str
) -> None:
    started_with({})
    called: list[str] = []
    package = kubernetes_package(**{loader: lambda: called.append(loader)})
    monkeypatch.setitem(sys.modules, "kubernetes", package)
    resolver = KubernetesClusterResolver({"worker": ["job-name=a"]}, executable_location=location)
    assert called == [loader]
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.1.0.1:8470"]}


def test_a_client_that_finds_no_cluster_says_where_it_looked(
    started_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise ConfigException("Service host/port is not set.")

    started_with({})
    monkeypatch.setitem(sys.modules, "kubernetes", kubernetes_package(load_incluster_config=load))
    with pytest.raises(LaunchError, match=r"=WITHIN_CLUSTER: Service host/port is not set.\n  fix: KubernetesExec"):
        KubernetesClusterResolver()


def test_without_variables_and_package_the_error_names_both(started_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started_with({})
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(
        LaunchError, match=r"without the package kubernetes .*no variables of TFJob.*\n  fix: pip install"
    ):
        KubernetesClusterResolver()


def test_a_location_is_one_of_two() -> None:
    with pytest.raises(
        ArgumentTypeError, match="executable_location=0 is not a KubernetesExecutableLocation\n  fix: Kub"
    ):
        KubernetesClusterResolver(executable_location=0)  # type: ignore[arg-type]
