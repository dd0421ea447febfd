# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute.coordinator`: training with parameter servers."""

from __future__ import annotations

from stratagem._core.unbuilt import Unbuilt, raise_not_built

__all__ = ["ClusterCoordinator", "PerWorkerValue", "RemoteValue", "experimental_get_current_worker_index"]


class ClusterCoordinator(Unbuilt, name="coordinator.ClusterCoordinator"):
    """Schedules functions on the workers of a parameter server cluster. Not built yet."""


class PerWorkerValue(Unbuilt, name="coordinator.PerWorkerValue"):
    """One value per worker. Not built yet."""


class RemoteValue(Unbuilt, name="coordinator.RemoteValue"):
    """The future result of a scheduled function. Not built yet."""


def experimental_get_current_worker_index() -> int:
    """The number of the worker that runs the current function. Not built yet."""
    raise_not_built("coordinator.experimental_get_current_worker_index")
