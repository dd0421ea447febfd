# SPDX-License-Identifier: Apache-2.0
"""Strategies: what the user makes, and what the code inside them can ask."""

from __future__ import annotations

from stratagem.strategies._cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from stratagem.strategies._current import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from stratagem.strategies._default import DefaultStrategy
from stratagem.strategies._distributed_dataset import DistributedDataset, DistributedIterator
from stratagem.strategies._extended import StrategyExtended
from stratagem.strategies._function import function
from stratagem.strategies._gradients import value_and_grad
from stratagem.strategies._mirrored import MirroredStrategy
from stratagem.strategies._multi_worker import MultiWorkerMirroredStrategy
from stratagem.strategies._one_device import OneDeviceStrategy
from stratagem.strategies._replica_context import ReplicaContext
from stratagem.strategies._strategy import Strategy
from stratagem.strategies._tpu import TPUStrategy
from stratagem.strategies._unbuilt import ParameterServerStrategy, Server

__all__ = [
    "CrossDeviceOps",
    "DefaultStrategy",
    "DistributedDataset",
    "DistributedIterator",
    "HierarchicalCopyAllReduce",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "ReductionToOneDevice",
    "ReplicaContext",
    "Server",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "experimental_set_strategy",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "value_and_grad",
]
