# SPDX-License-Identifier: Apache-2.0
"""Where the devices of a TPU lie, and which replica computes on which: names of `tf.tpu.experimental`."""

from __future__ import annotations

import enum
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratagem.errors import ArgumentError

__all__ = ["DeviceAssignment", "DeviceOrderMode", "HardwareFeature", "TPUSystemMetadata", "Topology"]

_RANK = 4
_ONE_CORE = (1, 1, 1, 1)


class DeviceOrderMode(enum.IntEnum):
    """How `DeviceAssignment.build` orders a replica's cores; with one core each there is nothing to order."""

    AUTO = 0
    RING = 1
    MESH = 2


class HardwareFeature:
    """What the TPU hardware offers beyond computing: `tf.tpu.experimental.HardwareFeature`."""

    class EmbeddingFeature(enum.Enum):
        """How embedding tables are supported."""

        UNSUPPORTED = "UNSUPPORTED"
        V1 = "V1"
        V2 = "V2"

    @property
    def embedding_feature(self) -> EmbeddingFeature:
        """Embedding hardware is not used: tables are ordinary weights."""
        return self.EmbeddingFeature.UNSUPPORTED


class TPUSystemMetadata(NamedTuple):
    """Facts of a TPU: `tf.tpu.experimental.TPUSystemMetadata`."""

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Topology | None
    devices: tuple[str, ...]


class Topology:
    """The devices of a TPU by their place: `tf.tpu.experimental.Topology`.

    Args:
        serialized: What `serialized()` gave; then the others are left out.
        mesh_shape: The extent of the four dimensions x, y, z and core.
        device_coordinates: Shape (tasks, devices of a task, 4).

    Raises:
        ArgumentError: the parts don't fit together.

    >>> Topology(mesh_shape=(2, 1, 1, 1), device_coordinates=[[(0, 0, 0, 0), (1, 0, 0, 0)]]).num_tpus_per_task
    2
    """

    def __init__(
        self,
        serialized: bytes | None = None,
        mesh_shape: Sequence[int] | None = None,
        device_coordinates: Any = None,
    ) -> None:
        if serialized is not None:
            stored = json.loads(serialized)
            mesh_shape, device_coordinates = stored["mesh_shape"], stored["device_coordinates"]
        self._shape = np.asarray(mesh_shape if mesh_shape is not None else (), np.int32)
        self._coordinates = np.asarray(device_coordinates if device_coordinates is not None else (), np.int32)
        if self._shape.shape != (_RANK,) or self._coordinates.ndim != 3 or self._coordinates.shape[-1] != _RANK:
            raise ArgumentError(
                f"a topology was made of mesh_shape {mesh_shape} and coordinates of shape {self._coordinates.shape}",
                fix="mesh_shape has 4 numbers, and device_coordinates the shape (tasks, devices per task, 4)",
            )
        self._places = {
            tuple(int(n) for n in place): (task, ordinal)
            for task, places in enumerate(self._coordinates)
            for ordinal, place in enumerate(places)
        }
        if len(self._places) != self._coordinates.shape[0] * self._coordinates.shape[1]:
            raise ArgumentError("two devices of a topology lie at the same place", fix="give each its own coordinates")

    @property
    def mesh_shape(self) -> np.ndarray:
        """The extent of the dimensions x, y, z and core."""
        return self._shape

    @property
    def mesh_rank(self) -> int:
        """The number of dimensions: 4."""
        return _RANK

    @property
    def device_coordinates(self) -> np.ndarray:
        """The place of each device, of shape (tasks, devices of a task, 4)."""
        return self._coordinates

    @property
    def missing_devices(self) -> np.ndarray:
        """The places inside the mesh that have no device, of shape (n, 4)."""
        every = itertools.product(*(range(int(size)) for size in self._shape))
        return np.array([place for place in every if place not in self._places], np.int32).reshape(-1, _RANK)

    @property
    def num_tasks(self) -> int:
        """How many hosts there are."""
        return int(self._coordinates.shape[0])

    @property
    def num_tpus_per_task(self) -> int:
        """How many devices each host has."""
        return int(self._coordinates.shape[1])

    def serialized(self) -> bytes:
        """All of it as bytes."""
        parts = {"mesh_shape": self._shape.tolist(), "device_coordinates": self._coordinates.tolist()}
        return json.dumps(parts).encode()

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The host of the device at a place."""
        return self._at(device_coordinates)[0]

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The number of the device at a place, on its host."""
        return self._at(device_coordinates)[1]

    def tpu_device_name_at_coordinates(self, device_coordinates: Sequence[int], job: str | None = None) -> str:
        """The long name of the device at a place."""
        task, ordinal = self._at(device_coordinates)
        return _name(job, task, f"TPU:{ordinal}")

    def cpu_device_name_at_coordinates(self, device_coordinates: Sequence[int], job: str | None = None) -> str:
        """The long name of the CPU on the host of the device at a place."""
        return _name(job, self._at(device_coordinates)[0], "CPU:0")

    def _at(self, coordinates: Sequence[int]) -> tuple[int, int]:
        place = tuple(int(n) for n in coordinates)
        if place not in self._places:
            raise ArgumentError(f"no device lies at {place}", fix="use a place out of topology.device_coordinates")
        return self._places[place]


class DeviceAssignment:
    """Which devices each replica computes on: `tf.tpu.experimental.DeviceAssignment`.

    Args:
        topology: The devices.
        core_assignment: Places, of shape (replicas, devices per replica, 4).

    Raises:
        ArgumentError: a place has no device, or two replicas share one.

    >>> places = [(x, y, 0, 0) for y in (0, 1) for x in (0, 1)]
    >>> topology = Topology(mesh_shape=(2, 2, 1, 1), device_coordinates=[places])
    >>> DeviceAssignment.build(topology, num_replicas=2).core_assignment[:, 0].tolist()
    [[0, 0, 0, 0], [1, 0, 0, 0]]
    """

    def __init__(self, topology: Topology, core_assignment: Any) -> None:
        self._topology = topology
        self._cores = np.asarray(core_assignment, np.int32)
        if self._cores.ndim != 3 or self._cores.shape[-1] != _RANK:
            raise ArgumentError(
                f"core_assignment has the shape {self._cores.shape}", fix="(replicas, devices per replica, 4)"
            )
        places = [tuple(int(n) for n in place) for place in self._cores.reshape(-1, _RANK)]
        for place in places:
            topology.tpu_device_ordinal_at_coordinates(place)
        if len(set(places)) != len(places):
            raise ArgumentError("core_assignment gives one device to two replicas", fix="name each place once")

    @classmethod
    def build(
        cls,
        topology: Topology,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
        device_order_mode: DeviceOrderMode = DeviceOrderMode.AUTO,
    ) -> DeviceAssignment:
        """Give replicas their devices in the order of the mesh: cores first, then x, y and z.

        Args:
            topology: The devices.
            computation_shape: How many devices a replica has in each dimension: (1, 1, 1, 1) if not given.
            computation_stride: The distance between a replica's devices; 1 everywhere is all that is taken.
            num_replicas: How many replicas.
            device_order_mode: The order of a replica's devices; RING is not taken for several.

        Raises:
            ArgumentError: the shape does not fit the mesh as often as there are replicas.
        """
        shape = tuple(int(n) for n in (computation_shape if computation_shape is not None else _ONE_CORE))
        stride = tuple(int(n) for n in (computation_stride if computation_stride is not None else _ONE_CORE))
        mesh = tuple(int(n) for n in topology.mesh_shape)
        if len(shape) != _RANK or min(shape) < 1 or stride != _ONE_CORE:
            raise ArgumentError(
                f"computation_shape={shape} with computation_stride={stride} can't be built",
                fix="computation_shape has 4 numbers of 1 or more, and computation_stride stays (1, 1, 1, 1)",
            )
        if device_order_mode == DeviceOrderMode.RING and math.prod(shape) > 1:
            raise ArgumentError("a replica's devices are not put into a ring", fix="DeviceOrderMode.MESH")
        blocks = [size // part for size, part in zip(mesh, shape, strict=True)]
        if not 1 <= num_replicas <= math.prod(blocks):
            raise ArgumentError(
                f"num_replicas={num_replicas} with computation_shape={shape} does not fit a mesh of {mesh}",
                fix=f"ask for 1 to {math.prod(blocks)} replicas",
            )
        # itertools.product lets its last factor run fastest, so z, y, x, core.
        x, y, z, core = (range(count) for count in blocks)
        starts = [(at_x, at_y, at_z, at_core) for at_z, at_y, at_x, at_core in itertools.product(z, y, x, core)][
            :num_replicas
        ]
        inside = np.array(list(itertools.product(*(range(size) for size in shape))), np.int32)
        return cls(topology, np.array(starts, np.int32)[:, None] * np.array(shape, np.int32) + inside)

    @property
    def topology(self) -> Topology:
        """The devices."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """How many replicas."""
        return int(self._cores.shape[0])

    @property
    def num_cores_per_replica(self) -> int:
        """How many devices each replica has."""
        return int(self._cores.shape[1])

    @property
    def core_assignment(self) -> np.ndarray:
        """The places, of shape (replicas, devices per replica, 4)."""
        return self._cores

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """The place of one of a replica's devices."""
        return tuple(int(n) for n in self._cores[replica, logical_core])

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """The replicas that have their device `logical_core` on a host."""
        return [replica for replica in range(self.num_replicas) if self._task(replica, logical_core) == task_id]

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """The number of one of a replica's devices, on its host."""
        return self._topology.tpu_device_ordinal_at_coordinates(self.coordinates(replica, logical_core))

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The long name of the CPU beside one of a replica's devices."""
        return self._topology.cpu_device_name_at_coordinates(self.coordinates(replica, logical_core), job)

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The long name of one of a replica's devices."""
        return self._topology.tpu_device_name_at_coordinates(self.coordinates(replica, logical_core), job)

    def _task(self, replica: int, logical_core: int) -> int:
        return self._topology.task_ordinal_at_coordinates(self.coordinates(replica, logical_core))


def _name(job: str | None, task: int, device: str) -> str:
    return f"/job:{job or 'localhost'}/task:{task}/device:{device}"
