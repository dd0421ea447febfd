# SPDX-License-Identifier: Apache-2.0
"""The older name of `TPUStrategy`: `tf.distribute.experimental.TPUStrategy`."""

from __future__ import annotations

from stratagem.cluster_resolver import TPUClusterResolver
from stratagem.strategies import Strategy
from stratagem.strategies._tpu import TPUExtended
from stratagem.tpu.experimental import DeviceAssignment

__all__ = ["TPUStrategy"]


class TPUStrategy(Strategy):
    """`stratagem.TPUStrategy` with its older arguments.

    Args:
        tpu_cluster_resolver: As for `stratagem.TPUStrategy`.
        device_assignment: As `experimental_device_assignment` there.
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        device_assignment: DeviceAssignment | None = None,
    ) -> None:
        self._tpu = TPUExtended(self, tpu_cluster_resolver, device_assignment, spmd=False)
        super().__init__(self._tpu)

    @property
    def cluster_resolver(self) -> TPUClusterResolver:
        """What found the TPU."""
        return self._tpu.resolver
