# SPDX-License-Identifier: Apache-2.0
"""`TPUClusterResolver`: which TPU a program gets, and what it is told where there is none."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

import stratagem as distribute
from stratagem.cluster_resolver import ClusterResolver, TPUClusterResolver, _tpu_hardware
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._tpu_hardware import Hardware
from stratagem.errors import ArgumentError, ArgumentTypeError, DeviceError
from stratagem.tpu.experimental import HardwareFeature, Topology

CPU_LINE = "stratagem run --backend jax --cpu-devices 8 script.py"


def attach(monkeypatch: pytest.MonkeyPatch, num_chips: int, *, libtpu: bool = True, **variables: str) -> None:
    """Let this machine have a TPU, or none."""
    for name in ("STRATAGEM_CPU_DEVICES", "TPU_NAME", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = Hardware(num_chips=num_chips, num_on_pci=num_chips, device_files=(), libtpu=libtpu, variables=())
    monkeypatch.setattr(_tpu_hardware, "look", lambda environ: found)


@pytest.mark.parametrize("tpu", [None, "", "local"])
def test_the_tpu_of_this_machine_is_taken(tpu: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 4)
    resolver = TPUClusterResolver(tpu)
    assert isinstance(resolver, ClusterResolver)
    assert resolver.num_accelerators() == {"TPU": 4}
    assert not resolver.stands_in


@pytest.mark.parametrize("tpu", [None, "", "local"])
def test_without_a_tpu_the_error_says_what_was_looked_for_and_what_to_run(
    tpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(monkeypatch, 0)
    with pytest.raises(DeviceError, match=r"no TPU is attached to this machine\. Looked for: Google chips") as raised:
        TPUClusterResolver(tpu)
    assert CPU_LINE in str(raised.value)


def test_a_program_that_falls_back_on_value_error_does(monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 0)
    try:
        strategy: Any = distribute.TPUStrategy(TPUClusterResolver())
    except ValueError:
        strategy = distribute.get_strategy()
    assert strategy.num_replicas_in_sync == 1


@pytest.mark.parametrize("tpu", ["grpc://10.0.0.2:8470", "my-tpu"])
def test_a_tpu_elsewhere_can_not_be_reached(tpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 0)
    with pytest.raises(DeviceError, match="can't be reached: JAX drives a TPU from the VM") as raised:
        TPUClusterResolver(tpu)
    assert repr(tpu) in raised.value.problem
    assert "Looked for here: Google chips" in raised.value.problem
    assert 'TPUClusterResolver("local")' in str(raised.value)
    assert CPU_LINE in str(raised.value)


def test_an_address_is_refused_on_a_tpu_vm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 4)
    with pytest.raises(DeviceError, match=r"the TPU at 'grpc://10\.0\.0\.2:8470' can't be reached"):
        TPUClusterResolver("grpc://10.0.0.2:8470")


def test_the_name_of_this_tpu_is_taken_and_said(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    attach(monkeypatch, 4, TPU_NAME="my-tpu")
    with caplog.at_level(logging.WARNING):
        assert TPUClusterResolver("my-tpu").num_accelerators() == {"TPU": 4}
    assert "tpu='my-tpu' is taken to be the TPU of this machine" in caplog.text
    with pytest.raises(DeviceError, match="the TPU 'another' can't be reached"):
        TPUClusterResolver("another")


def test_chips_without_libtpu_are_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 4, libtpu=False)
    with pytest.raises(DeviceError, match="has 4 TPU chips, but libtpu") as raised:
        TPUClusterResolver()
    assert raised.value.fix == "pip install 'stratagem[tpu]'"


@pytest.mark.parametrize("tpu", [None, "local", "my-tpu", "grpc://10.0.0.2:8470"])
def test_cpu_devices_that_were_asked_for_stand_in(tpu: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 0, STRATAGEM_CPU_DEVICES="8")
    resolver = TPUClusterResolver(tpu)
    assert resolver.stands_in
    assert resolver.num_accelerators() == {"TPU": 8}
    assert resolver.get_tpu_system_metadata().devices[7] == "/job:worker/replica:0/task:0/device:CPU:7"


def test_the_answers_are_those_of_tensorflow_for_a_local_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 4)
    resolver = TPUClusterResolver.connect("local")
    assert resolver.master() == resolver.get_master() == resolver.environment == ""
    assert (resolver.task_type, resolver.task_id, resolver.get_job_name()) == ("worker", 0, "worker")
    assert resolver.get_coordination_service_leader() == "/job:worker/task:0"
    assert resolver.cluster_spec().as_dict() == {"worker": [socket.gethostname()]}
    assert resolver.tpu_hardware_feature is None


def test_a_slice_of_several_hosts_is_known_from_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 4, TPU_WORKER_HOSTNAMES="t-0,t-1", TPU_WORKER_ID="1")
    resolver = TPUClusterResolver(job_name="tpu", coordinator_name="coordinator", coordinator_address="10.0.0.1:1")
    assert resolver.cluster_spec() == ClusterSpec({"tpu": ["t-0", "t-1"], "coordinator": ["10.0.0.1:1"]})
    assert resolver.task_id == 1
    metadata = resolver.get_tpu_system_metadata()
    assert (metadata.num_hosts, metadata.num_cores, metadata.num_of_cores_per_host) == (2, 8, 4)
    assert metadata.devices[-1] == "/job:tpu/replica:0/task:1/device:TPU:3"
    assert "hosts=['t-0', 't-1']" in repr(resolver)


def test_a_topology_that_was_set_decides_how_many_devices_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 1)
    resolver = TPUClusterResolver()
    topology = Topology(mesh_shape=(1, 1, 1, 2), device_coordinates=[[(0, 0, 0, 0), (0, 0, 0, 1)]])
    resolver.set_tpu_topology(topology.serialized())
    assert resolver.num_accelerators() == {"TPU": 2}
    feature = resolver.tpu_hardware_feature
    assert feature is not None
    assert feature.embedding_feature is HardwareFeature.EmbeddingFeature.UNSUPPORTED


@pytest.mark.parametrize("given", [{"coordinator_name": "c"}, {"coordinator_address": "10.0.0.1:1"}])
def test_a_coordinator_has_a_name_and_an_address(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    attach(monkeypatch, 4)
    with pytest.raises(ArgumentError, match="go together"):
        TPUClusterResolver(**given)  # type: ignore[arg-type]


def test_a_tpu_is_named_by_a_string() -> None:
    with pytest.raises(ArgumentTypeError, match="tpu=8 is not a string"):
        TPUClusterResolver(8)  # type: ignore[arg-type]


def test_a_cluster_is_asked_for_its_tasks() -> None:
    spec = ClusterSpec({"worker": ["a:1", "b:1"]})
    assert (spec.jobs, spec.num_tasks("worker"), spec.task_indices("worker")) == (["worker"], 2, [0, 1])
    assert spec.task_address("worker", 1) == "b:1"
    assert spec
    assert not ClusterSpec({})
    assert spec != ClusterSpec({})
    assert hash(spec) == hash(ClusterSpec(spec.as_dict()))
    with pytest.raises(ArgumentError, match="no job 'ps'"):
        spec.job_tasks("ps")
    with pytest.raises(ArgumentError, match="no task 2"):
        spec.task_address("worker", 2)


def test_a_resolver_of_ones_own_answers_two_questions() -> None:
    class Mine(ClusterResolver):
        def cluster_spec(self) -> ClusterSpec:
            return ClusterSpec({})

        def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
            return "host:1"

    mine = Mine()
    assert (mine.task_type, mine.task_id, mine.environment, mine.num_accelerators()) == (None, None, "", {})
