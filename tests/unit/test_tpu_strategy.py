# SPDX-License-Identifier: Apache-2.0
"""`TPUStrategy` and the names of `tf.tpu.experimental`, on an engine without a TPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stratagem as distribute
from stratagem.cluster_resolver import TPUClusterResolver, _tpu_hardware
from stratagem.cluster_resolver._tpu_hardware import Hardware
from stratagem.engines import select
from stratagem.engines.base import Capabilities
from stratagem.errors import ArgumentError, ArgumentTypeError, BackendError, DeviceError
from stratagem.testing.fake_engine import FakeEngine
from stratagem.tpu.experimental import (
    DeviceAssignment,
    Topology,
    initialize_tpu_system,
    shutdown_tpu_system,
)


class TPUEngine(FakeEngine):
    """A host with the four chips of a v5e:2x2 slice."""

    def __init__(self) -> None:
        super().__init__(4, "TPU")

    def device_coordinates(self, name: str) -> tuple[int, int, int, int] | None:
        index = int(name.removeprefix("TPU:"))
        return (index % 2, index // 2, 0, 0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """An engine with four TPU devices, on a machine with as many chips."""
    monkeypatch.delenv("STRATAGEM_CPU_DEVICES", raising=False)
    found = Hardware(num_chips=4, num_on_pci=4, device_files=(), libtpu=True, variables=())
    monkeypatch.setattr(_tpu_hardware, "look", lambda environ: found)
    with select.use(TPUEngine()) as made:
        yield made


def test_every_device_of_the_tpu_is_a_replica(engine: FakeEngine) -> None:
    strategy = distribute.TPUStrategy()
    assert strategy.num_replicas_in_sync == 4
    assert strategy.extended.worker_devices[3] == "/job:localhost/replica:0/task:0/device:TPU:3"
    assert repr(strategy) == "TPUStrategy(engine=fake, devices=('TPU:0', 'TPU:1', 'TPU:2', 'TPU:3'), replicas=4)"
    assert isinstance(strategy.cluster_resolver, TPUClusterResolver)


def test_the_strategy_keeps_its_resolver_and_says_how_the_replicas_are_spread(engine: FakeEngine) -> None:
    resolver = TPUClusterResolver("local")
    strategy = distribute.TPUStrategy(resolver)
    extended: Any = strategy.extended
    assert strategy.cluster_resolver is resolver
    assert (extended.num_hosts, extended.num_replicas_per_host) == (1, 4)
    assert extended.tpu_hardware_feature is None


def test_the_three_lines_of_a_program_for_tpus_stay(engine: FakeEngine) -> None:
    resolver = distribute.cluster_resolver.TPUClusterResolver(tpu="")
    distribute.config.experimental_connect_to_cluster(resolver)
    distribute.tpu.experimental.initialize_tpu_system(resolver)
    assert distribute.TPUStrategy(resolver).num_replicas_in_sync == 4
    with pytest.raises(ArgumentTypeError, match="not a cluster resolver"):
        distribute.config.experimental_connect_to_cluster("grpc://10.0.0.2:8470")  # type: ignore[arg-type]


def test_the_older_name_takes_the_older_arguments(engine: FakeEngine) -> None:
    assignment = DeviceAssignment.build(initialize_tpu_system(), num_replicas=1)
    strategy = distribute.experimental.TPUStrategy(TPUClusterResolver(), device_assignment=None)
    assert strategy.num_replicas_in_sync == 4
    assert isinstance(strategy.cluster_resolver, TPUClusterResolver)
    with pytest.raises(TypeError, match="experimental_device_assignment"):
        distribute.experimental.TPUStrategy(experimental_device_assignment=assignment)  # type: ignore[call-arg]


def test_a_step_runs_on_every_replica(engine: FakeEngine) -> None:
    strategy = distribute.TPUStrategy()
    ids = strategy.run(lambda: distribute.get_replica_context().replica_id_in_sync_group)  # type: ignore[union-attr]
    assert [int(value) for value in strategy.experimental_local_results(ids)] == [0, 1, 2, 3]


def test_cpu_devices_stand_in_and_one_line_says_so(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("STRATAGEM_CPU_DEVICES", "2")
    with select.use(FakeEngine(2)), caplog.at_level(logging.WARNING):
        resolver = TPUClusterResolver("grpc://10.0.0.2:8470")
        topology = initialize_tpu_system(resolver)
        assert topology.device_coordinates.tolist() == [[[0, 0, 0, 0], [1, 0, 0, 0]]]
        assert distribute.TPUStrategy(resolver).extended.devices == ("CPU:0", "CPU:1")
    assert [record.message for record in caplog.records] == [
        "2 CPU devices stand in for a TPU, as CPU devices were asked for"
    ]


def test_an_engine_of_one_replica_a_process_is_refused(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Capabilities(many_replicas_per_process=False, traced_functions=False)
    monkeypatch.setattr(engine, "capabilities", one)
    with pytest.raises(BackendError, match="which the fake engine does not") as raised:
        distribute.TPUStrategy()
    assert "KERAS_BACKEND=jax" in str(raised.value)


def test_chips_that_the_engine_does_not_see_are_an_error(engine: FakeEngine) -> None:
    with select.use(FakeEngine(1)), pytest.raises(DeviceError, match="has 4 TPU chips, but fake sees none of them"):
        distribute.TPUStrategy()


def test_the_topology_has_the_coordinates_of_the_devices(engine: FakeEngine) -> None:
    resolver = TPUClusterResolver()
    topology = distribute.tpu.experimental.initialize_tpu_system(resolver)
    assert topology.mesh_shape.tolist() == [2, 2, 1, 1]
    assert topology.device_coordinates.tolist() == [[[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]]]
    assert resolver.get_tpu_system_metadata().topology is not None
    shutdown_tpu_system(resolver)


def test_replicas_compute_on_the_devices_that_they_are_assigned(engine: FakeEngine) -> None:
    topology = initialize_tpu_system()
    assignment = DeviceAssignment(topology, [[(1, 1, 0, 0)], [(0, 0, 0, 0)]])
    strategy = distribute.TPUStrategy(experimental_device_assignment=assignment)
    assert strategy.extended.devices == ("TPU:3", "TPU:0")


def test_a_replica_of_several_devices_is_refused(engine: FakeEngine) -> None:
    topology = initialize_tpu_system()
    assignment = DeviceAssignment(topology, [[(0, 0, 0, 0), (1, 0, 0, 0)]])
    with pytest.raises(ArgumentError, match="gives each replica 2 devices") as raised:
        distribute.TPUStrategy(experimental_device_assignment=assignment)
    assert "computation_shape" in str(raised.value)


def test_an_assignment_for_another_tpu_is_refused(engine: FakeEngine) -> None:
    topology = Topology(mesh_shape=(1, 1, 1, 2), device_coordinates=[[(0, 0, 0, 0), (0, 0, 0, 1)]])
    assignment = DeviceAssignment.build(topology, num_replicas=2)
    with pytest.raises(ArgumentError, match=r"names \(0, 0, 0, 1\), where this TPU has no device"):
        distribute.TPUStrategy(experimental_device_assignment=assignment)


def test_arguments_of_another_type_are_refused(engine: FakeEngine) -> None:
    with pytest.raises(ArgumentTypeError, match="tpu_cluster_resolver='local' is not a TPUClusterResolver"):
        distribute.TPUStrategy("local")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="experimental_device_assignment=8 is not a DeviceAssignment"):
        distribute.TPUStrategy(experimental_device_assignment=8)  # type: ignore[arg-type]


def test_a_replica_has_one_logical_device(engine: FakeEngine) -> None:
    strategy = distribute.TPUStrategy()
    tensor = np.zeros((2, 3))
    assert strategy.experimental_assign_to_logical_device(tensor, 0) is tensor
    assert strategy.experimental_split_to_logical_devices(tensor, [1, 1]) is tensor
    assert strategy.experimental_replicate_to_logical_devices(tensor) is tensor
    with pytest.raises(ArgumentError, match="logical device 1 was asked for"):
        strategy.experimental_assign_to_logical_device(tensor, 1)
    for parts in ([1, 2], [1]):
        with pytest.raises(ArgumentError, match="a tensor of 2 dimensions was to be split"):
            strategy.experimental_split_to_logical_devices(tensor, parts)


def test_with_spmd_partitioning_nothing_is_assigned_as_in_tensorflow(engine: FakeEngine) -> None:
    strategy = distribute.TPUStrategy(experimental_spmd_xla_partitioning=True)
    assert strategy.experimental_split_to_logical_devices(np.zeros(2), [1]).shape == (2,)
    with pytest.raises(ArgumentError, match="experimental_spmd_xla_partitioning=True"):
        strategy.experimental_assign_to_logical_device(np.zeros(2), 0)


def test_nothing_is_compiled_ahead_of_time_without_jax(engine: FakeEngine) -> None:
    with pytest.raises(BackendError, match="the fake engine compiles nothing ahead of time"):
        distribute.TPUStrategy().compile_for("v5e:2x4", object(), ())
