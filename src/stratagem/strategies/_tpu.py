# SPDX-License-Identifier: Apache-2.0
"""A strategy with one replica on each device of a TPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from stratagem._core import env
from stratagem.cluster_resolver import TPUClusterResolver
from stratagem.cluster_resolver._tpu_topology import DeviceAssignment, HardwareFeature
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.errors import ArgumentError, ArgumentTypeError
from stratagem.strategies import _tpu_system
from stratagem.strategies._on_devices import OnDevicesExtended
from stratagem.strategies._strategy import Strategy

__all__ = ["TPUExtended", "TPUStrategy"]

_logger = logging.getLogger(__name__)


class TPUExtended(OnDevicesExtended):
    """`extended` of a `TPUStrategy`."""

    def __init__(
        self,
        container_strategy: Strategy,
        resolver: TPUClusterResolver | None,
        assignment: DeviceAssignment | None,
        *,
        spmd: bool,
    ) -> None:
        if resolver is not None and not isinstance(resolver, TPUClusterResolver):
            raise ArgumentTypeError(
                f"tpu_cluster_resolver={resolver!r} is not a TPUClusterResolver",
                fix="TPUStrategy(TPUClusterResolver()), or leave it out",
            )
        self.resolver = TPUClusterResolver() if resolver is None else resolver
        self.spmd = spmd
        engine = select.engine()
        present = _tpu_system.devices(engine, self.resolver)
        devices = present if assignment is None else _assigned(engine, self.resolver, assignment)
        if self.resolver.stands_in and env.compile_request() is None:
            _logger.warning("%d CPU devices stand in for a TPU, as CPU devices were asked for", len(devices))
        super().__init__(container_strategy, engine, devices)

    @property
    def num_hosts(self) -> int:
        """How many machines the TPU is attached to."""
        return self.resolver.get_tpu_system_metadata().num_hosts

    @property
    def num_replicas_per_host(self) -> int:
        """Replicas on the devices of one machine."""
        return self.num_replicas // self.num_hosts

    @property
    def tpu_hardware_feature(self) -> HardwareFeature | None:
        """What the hardware offers, once the TPU was initialized."""
        return self.resolver.tpu_hardware_feature


class TPUStrategy(Strategy):
    """Train on all devices of a TPU in step, each with a copy of the variables: `tf.distribute.TPUStrategy`.

    It needs KERAS_BACKEND=jax. `stratagem run --backend jax --cpu-devices 8 script.py` runs the same script without a
    TPU.

    Args:
        tpu_cluster_resolver: Finds the TPU; `TPUClusterResolver()` if not given.
        experimental_device_assignment: Which devices the replicas compute on, one each; all if not given.
        experimental_spmd_xla_partitioning: JAX's programs are always SPMD, so it only decides what
            `experimental_assign_to_logical_device` takes.

    Raises:
        DeviceError: there is no TPU here.
        BackendError: Keras's backend is not jax.
        ArgumentError: a replica is given several devices.
        ArgumentTypeError: an argument is something else.

    >>> from stratagem.engines import select
    >>> from stratagem.testing.fake_engine import FakeEngine
    >>> import os, unittest.mock
    >>> with unittest.mock.patch.dict(os.environ, STRATAGEM_CPU_DEVICES="2"), select.use(FakeEngine(2)):
    ...     TPUStrategy()
    TPUStrategy(engine=fake, devices=('CPU:0', 'CPU:1'), replicas=2)
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        experimental_device_assignment: DeviceAssignment | None = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        self._tpu = TPUExtended(
            self,
            tpu_cluster_resolver,
            experimental_device_assignment,
            spmd=experimental_spmd_xla_partitioning,
        )
        super().__init__(self._tpu)

    @property
    def cluster_resolver(self) -> TPUClusterResolver:
        """What found the TPU."""
        return self._tpu.resolver

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """`tensor` itself: a replica has one logical device, number 0.

        Args:
            tensor: What to place.
            logical_device_id: 0.

        Raises:
            ArgumentError: another number, or the strategy was made with `experimental_spmd_xla_partitioning=True`,
                which TensorFlow refuses too.
        """
        if self._tpu.spmd:
            raise ArgumentError(
                "a tensor can't be assigned to a logical device with experimental_spmd_xla_partitioning=True",
                fix="leave experimental_spmd_xla_partitioning out",
            )
        if logical_device_id != 0:
            raise ArgumentError(
                f"logical device {logical_device_id} was asked for, but each replica has one, number 0",
                fix="logical_device_id=0",
            )
        return tensor

    def experimental_split_to_logical_devices(self, tensor: Any, partition_dimensions: Sequence[int]) -> Any:
        """`tensor` itself: a replica has one logical device, so there is one part.

        Args:
            tensor: What to split.
            partition_dimensions: Into how many parts, for each of its dimensions: 1.

        Raises:
            ArgumentError: another number of parts or of dimensions.
        """
        parts = tuple(int(count) for count in partition_dimensions)
        rank = len(tensor.shape)
        if parts != (1,) * rank:
            raise ArgumentError(
                f"a tensor of {rank} dimensions was to be split by {parts}, but each replica has one logical device",
                fix=f"partition_dimensions={[1] * rank}",
            )
        return tensor

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """`tensor` itself: a replica has one logical device.

        Args:
            tensor: What to have on each.
        """
        return tensor


def _assigned(engine: Engine, resolver: TPUClusterResolver, assignment: object) -> tuple[str, ...]:
    if not isinstance(assignment, DeviceAssignment):
        raise ArgumentTypeError(
            f"experimental_device_assignment={assignment!r} is not a DeviceAssignment",
            fix="make one with tpu.experimental.DeviceAssignment.build(topology, num_replicas=8)",
        )
    if assignment.num_cores_per_replica != 1:
        raise ArgumentError(
            f"experimental_device_assignment gives each replica {assignment.num_cores_per_replica} devices, but a "
            "replica computes on one: models are not divided among devices",
            fix="leave computation_shape out of DeviceAssignment.build",
        )
    by_place = _tpu_system.by_coordinates(engine, resolver)
    places = [assignment.coordinates(replica, 0) for replica in range(assignment.num_replicas)]
    astray = [place for place in places if place not in by_place]
    if astray:
        raise ArgumentError(
            f"experimental_device_assignment names {astray[0]}, where this TPU has no device",
            fix="build it from what tpu.experimental.initialize_tpu_system(resolver) returns",
        )
    return tuple(by_place[place] for place in places)
