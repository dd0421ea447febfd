# SPDX-License-Identifier: Apache-2.0
"""The devices of a TPU and their places: `initialize_tpu_system` and its like."""

from __future__ import annotations

import numpy as np

from stratagem.cluster_resolver import TPUClusterResolver
from stratagem.cluster_resolver._tpu_topology import Topology
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.errors import BackendError, DeviceError

__all__ = ["by_coordinates", "devices", "initialize_tpu_system", "shutdown_tpu_system"]

Place = tuple[int, ...]


def devices(engine: Engine, resolver: TPUClusterResolver) -> tuple[str, ...]:
    """The devices that a TPU strategy computes on.

    Raises:
        BackendError: the engine does not drive TPUs.
        DeviceError: the machine has a TPU, but the engine found none.
    """
    if not engine.capabilities.many_replicas_per_process:
        raise BackendError(
            f"TPUStrategy needs one process that drives all devices of a TPU, which the {engine.name} engine does not",
            fix="run the script with KERAS_BACKEND=jax, set before the first `import keras`",
        )
    if resolver.stands_in:
        return engine.local_devices()
    found = tuple(name for name in engine.all_devices() if name.startswith("TPU:"))
    if not found:
        raise DeviceError(
            f"this machine has {resolver.num_accelerators()['TPU']} TPU chips, but {engine.name} sees none of them: it "
            f"has {', '.join(engine.all_devices())}",
            fix="end other programs that use the TPU, and unset JAX_PLATFORMS",
        )
    return found


def by_coordinates(engine: Engine, resolver: TPUClusterResolver) -> dict[Place, str]:
    """Each device by its place; devices that form no mesh stand in a row."""
    return {
        engine.device_coordinates(name) or (index, 0, 0, 0): name
        for index, name in enumerate(devices(engine, resolver))
    }


def initialize_tpu_system(cluster_resolver: TPUClusterResolver | None = None) -> Topology:
    """Start the TPU and say where its devices lie: `tf.tpu.experimental.initialize_tpu_system`.

    A strategy does so by itself; programs call this as they did with TensorFlow, or for a `DeviceAssignment`.

    Args:
        cluster_resolver: What found the TPU; `TPUClusterResolver()` if not given.

    Returns:
        The devices of this machine and their coordinates; `num_tasks` is 1.

    Raises:
        DeviceError: there is no TPU.
        BackendError: Keras's backend is not jax.
    """
    resolver = TPUClusterResolver() if cluster_resolver is None else cluster_resolver
    places = np.array(list(by_coordinates(select.engine(), resolver)), np.int32)
    topology = Topology(
        # A slice of several machines has its coordinates count on from machine to machine.
        mesh_shape=places.max(axis=0) + 1,
        device_coordinates=places[None],
    )
    resolver.set_tpu_topology(topology.serialized())
    return topology


def shutdown_tpu_system(cluster_resolver: TPUClusterResolver | None = None) -> None:
    """Nothing to do: the TPU is free when the process ends. `tf.tpu.experimental.shutdown_tpu_system`.

    Args:
        cluster_resolver: Not used.
    """
    del cluster_resolver
