# SPDX-License-Identifier: Apache-2.0
"""`Topology` and `DeviceAssignment`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stratagem.errors import ArgumentError
from stratagem.tpu.experimental import DeviceAssignment, DeviceOrderMode, Topology

# Two hosts with four chips of one core each.
PLACES = [[(x, y, 0, 0) for y in rows for x in (0, 1)] for rows in ((0, 1), (2, 3))]


@pytest.fixture
def topology() -> Topology:
    return Topology(mesh_shape=(2, 4, 1, 1), device_coordinates=PLACES)


def test_a_place_has_a_host_a_number_and_names(topology: Topology) -> None:
    place = (1, 2, 0, 0)
    assert (topology.num_tasks, topology.num_tpus_per_task, topology.mesh_rank) == (2, 4, 4)
    assert topology.task_ordinal_at_coordinates(place) == 1
    assert topology.tpu_device_ordinal_at_coordinates(place) == 1
    assert topology.tpu_device_name_at_coordinates(place) == "/job:localhost/task:1/device:TPU:1"
    assert topology.cpu_device_name_at_coordinates(place, job="worker") == "/job:worker/task:1/device:CPU:0"
    assert topology.missing_devices.shape == (0, 4)
    with pytest.raises(ArgumentError, match=r"no device lies at \(5, 0, 0, 0\)"):
        topology.task_ordinal_at_coordinates((5, 0, 0, 0))


def test_places_without_a_device_are_listed() -> None:
    half = Topology(mesh_shape=(2, 2, 1, 1), device_coordinates=[[(0, 0, 0, 0), (1, 1, 0, 0)]])
    assert half.missing_devices.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_a_topology_comes_back_from_its_bytes(topology: Topology) -> None:
    copy = Topology(topology.serialized())
    assert copy.mesh_shape.tolist() == topology.mesh_shape.tolist()
    assert copy.device_coordinates.tolist() == topology.device_coordinates.tolist()


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"mesh_shape": (2, 4), "device_coordinates": PLACES},
        {"mesh_shape": (2, 4, 1, 1), "device_coordinates": PLACES[0]},
    ],
)
def test_parts_that_do_not_fit_make_no_topology(parts: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="a topology was made of mesh_shape"):
        Topology(**parts)


def test_two_devices_can_not_lie_at_one_place() -> None:
    with pytest.raises(ArgumentError, match="two devices of a topology lie at the same place"):
        Topology(mesh_shape=(1, 1, 1, 1), device_coordinates=[[(0, 0, 0, 0), (0, 0, 0, 0)]])


def test_replicas_get_their_devices_in_the_order_of_the_mesh(topology: Topology) -> None:
    assignment = DeviceAssignment.build(topology, num_replicas=8)
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (8, 1)
    assert [assignment.coordinates(replica, 0) for replica in range(8)] == list(itertools.chain(*PLACES))
    assert assignment.topology is topology
    assert assignment.tpu_ordinal(5) == 1
    assert assignment.lookup_replicas(1, 0) == [4, 5, 6, 7]
    assert assignment.tpu_device(5) == "/job:localhost/task:1/device:TPU:1"
    assert assignment.host_device(5) == "/job:localhost/task:1/device:CPU:0"


def test_a_replica_may_have_a_block_of_devices(topology: Topology) -> None:
    assignment = DeviceAssignment.build(topology, computation_shape=(2, 2, 1, 1), num_replicas=2)
    assert assignment.core_assignment[1].tolist() == [[0, 2, 0, 0], [0, 3, 0, 0], [1, 2, 0, 0], [1, 3, 0, 0]]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"num_replicas": 9}, "num_replicas=9 .* does not fit a mesh of"),
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"computation_shape": (1, 1)}, "can't be built"),
        ({"computation_shape": (1, 0, 1, 1)}, "can't be built"),
        ({"computation_stride": (1, 2, 1, 1)}, "can't be built"),
        ({"computation_shape": (2, 1, 1, 1), "device_order_mode": DeviceOrderMode.RING}, "not put into a ring"),
    ],
)
def test_an_assignment_that_does_not_fit_is_refused(topology: Topology, given: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        DeviceAssignment.build(topology, **given)


@pytest.mark.parametrize(
    ("cores", "match"),
    [
        ([(0, 0, 0, 0)], "core_assignment has the shape"),
        ([[(7, 0, 0, 0)]], "no device lies at"),
        ([[(0, 0, 0, 0)], [(0, 0, 0, 0)]], "gives one device to two replicas"),
    ],
)
def test_an_assignment_names_each_device_once(topology: Topology, cores: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        DeviceAssignment(topology, cores)
