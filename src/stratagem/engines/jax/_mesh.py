# SPDX-License-Identifier: Apache-2.0
"""The mesh that the replicas of a job form: one axis, one device each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["AXIS", "Device", "Replicas"]

AXIS = "replica"
Device = Any  # jax.Device, which type checkers take for a variable


@dataclass(frozen=True)
class Replicas:
    """All replicas of a job and where their values lie; made once, as compiled steps are kept per mesh.

    Attributes:
        mesh: One axis, `AXIS`; place i is the device of replica i.
        sharded: Where a value lies whose first dimension is divided among the replicas.
        replicated: Where a value lies that every replica has whole.
        local_ids: The replicas whose devices this process drives.
    """

    mesh: Mesh
    sharded: NamedSharding
    replicated: NamedSharding
    local_ids: tuple[int, ...]

    @classmethod
    def on(cls, devices: Sequence[Device]) -> Replicas:
        """Replica i on `devices[i]`."""
        mesh = Mesh(np.array(devices, dtype=object), (AXIS,))
        mine = jax.process_index()
        return cls(
            mesh=mesh,
            sharded=NamedSharding(mesh, PartitionSpec(AXIS)),
            replicated=NamedSharding(mesh, PartitionSpec()),
            local_ids=tuple(i for i, device in enumerate(devices) if device.process_index == mine),
        )

    @property
    def size(self) -> int:
        """How many replicas there are."""
        return self.mesh.size

    @property
    def devices(self) -> tuple[Device, ...]:
        """Each replica's device."""
        return tuple(self.mesh.devices.flat)

    @property
    def on_cpu(self) -> bool:
        """Whether the replicas compute on CPU devices."""
        return self.devices[0].platform == "cpu"
