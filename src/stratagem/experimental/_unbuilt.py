# SPDX-License-Identifier: Apache-2.0
"""The strategies and helpers of `tf.distribute.experimental` that are not built yet."""

from __future__ import annotations

from stratagem._core.unbuilt import Unbuilt

__all__ = [
    "CentralStorageStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "TerminationConfig",
]


class CentralStorageStrategy(Unbuilt, name="experimental.CentralStorageStrategy"):
    """Variables on one device, computation on all. Not built yet."""


class ParameterServerStrategy(Unbuilt, name="experimental.ParameterServerStrategy"):
    """The older name of `ParameterServerStrategy`. Not built yet."""


class PreemptionCheckpointHandler(Unbuilt, name="experimental.PreemptionCheckpointHandler"):
    """Saves the same step on all workers when the job is told to stop. Not built yet."""


class PreemptionWatcher(Unbuilt, name="experimental.PreemptionWatcher"):
    """Tells when the job is told to stop. Not built yet."""


class TerminationConfig(Unbuilt, name="experimental.TerminationConfig"):
    """What a preempted job does before it ends. Not built yet."""
