# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute.experimental`."""

from __future__ import annotations

from stratagem._core.options import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from stratagem.experimental import coordinator, partitioners, rpc
from stratagem.experimental._multi_worker import MultiWorkerMirroredStrategy
from stratagem.experimental._preemption import PreemptionCheckpointHandler, PreemptionWatcher, TerminationConfig
from stratagem.experimental._tpu import TPUStrategy
from stratagem.experimental._unbuilt import CentralStorageStrategy, ParameterServerStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "TPUStrategy",
    "TerminationConfig",
    "ValueContext",
    "coordinator",
    "partitioners",
    "rpc",
]
