# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute.experimental.coordinator`."""

from __future__ import annotations

from stratagem._core.unbuilt import Unbuilt

__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue"]


class ClusterCoordinator(Unbuilt, name="experimental.coordinator.ClusterCoordinator"):
    """The older name of `coordinator.ClusterCoordinator`. Not built yet."""


class PerWorkerValues(Unbuilt, name="experimental.coordinator.PerWorkerValues"):
    """The older name of `coordinator.PerWorkerValue`. Not built yet."""


class RemoteValue(Unbuilt, name="experimental.coordinator.RemoteValue"):
    """The older name of `coordinator.RemoteValue`. Not built yet."""
