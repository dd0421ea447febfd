# SPDX-License-Identifier: Apache-2.0
"""`tf.distribute` for Keras 3: `import stratagem as distribute`.

Names are loaded when they are first used; importing this package loads no framework and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem._core import lazy

if TYPE_CHECKING:
    from stratagem import cluster_resolver, config, coordinator, errors, experimental, testing, tpu
    from stratagem._core.enums import ReduceOp, VariableAggregation, VariableSynchronization
    from stratagem._core.input_options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
    from stratagem._core.options import RunOptions
    from stratagem._core.values import DistributedValues
    from stratagem.data._arrays import ArrayDataset
    from stratagem.data._policy import ShardReport
    from stratagem.keras_fit._average_loss import compute_average_loss, scale_regularization_loss
    from stratagem.keras_fit._backup import BackupAndRestore
    from stratagem.keras_fit._backup_objects import Checkpoint, CheckpointManager
    from stratagem.keras_fit._variable import Variable
    from stratagem.launch import launch
    from stratagem.strategies import (
        CrossDeviceOps,
        DistributedDataset,
        DistributedIterator,
        HierarchicalCopyAllReduce,
        MirroredStrategy,
        MultiWorkerMirroredStrategy,
        NcclAllReduce,
        OneDeviceStrategy,
        ParameterServerStrategy,
        ReductionToOneDevice,
        ReplicaContext,
        Server,
        Strategy,
        StrategyExtended,
        TPUStrategy,
        experimental_set_strategy,
        function,
        get_replica_context,
        get_strategy,
        has_strategy,
        in_cross_replica_context,
        value_and_grad,
    )

__version__ = "0.1.0"

__all__ = [
    "ArrayDataset",
    "AutoShardPolicy",
    "BackupAndRestore",
    "Checkpoint",
    "CheckpointManager",
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Server",
    "ShardReport",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "__version__",
    "cluster_resolver",
    "compute_average_loss",
    "config",
    "coordinator",
    "errors",
    "experimental",
    "experimental_set_strategy",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "launch",
    "scale_regularization_loss",
    "testing",
    "tpu",
    "value_and_grad",
]

_HOMES = {
    **dict.fromkeys(("ReduceOp", "VariableAggregation", "VariableSynchronization"), "stratagem._core.enums"),
    **dict.fromkeys(
        ("AutoShardPolicy", "InputContext", "InputOptions", "InputReplicationMode"), "stratagem._core.input_options"
    ),
    "ArrayDataset": "stratagem.data._arrays",
    "ShardReport": "stratagem.data._policy",
    **dict.fromkeys(("compute_average_loss", "scale_regularization_loss"), "stratagem.keras_fit._average_loss"),
    "BackupAndRestore": "stratagem.keras_fit._backup",
    **dict.fromkeys(("Checkpoint", "CheckpointManager"), "stratagem.keras_fit._backup_objects"),
    "DistributedValues": "stratagem._core.values",
    "Variable": "stratagem.keras_fit._variable",
    "RunOptions": "stratagem._core.options",
}
_MODULES = ("cluster_resolver", "config", "coordinator", "errors", "experimental", "launch", "testing", "tpu")


def _home(name: str) -> str:
    return f"stratagem.{name}" if name in _MODULES else _HOMES.get(name, "stratagem.strategies")


_get, _names = lazy.attach(__name__, {name: _home(name) for name in __all__ if name != "__version__"})


def __getattr__(name: str) -> Any:
    return _get(name)


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
