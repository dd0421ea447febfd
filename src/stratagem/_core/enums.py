# SPDX-License-Identifier: Apache-2.0
"""The enums of `tf.distribute` and of `tf.Variable`'s distribution arguments."""

from __future__ import annotations

import enum

__all__ = ["ReduceOp", "Reduction", "VariableAggregation", "VariableSynchronization"]


class ReduceOp(enum.Enum):
    """How the values of all replicas become one: `tf.distribute.ReduceOp`.

    >>> ReduceOp("sum") is ReduceOp("SUM") is ReduceOp.SUM
    True
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def _missing_(cls, value: object) -> ReduceOp | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class Reduction(enum.Enum):
    """What an engine can reduce with: `ReduceOp`'s two and the extremes."""

    SUM = "SUM"
    MEAN = "MEAN"
    MIN = "MIN"
    MAX = "MAX"


class VariableAggregation(enum.Enum):
    """How different updates of a variable by several replicas become one: `tf.VariableAggregation`."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class VariableSynchronization(enum.Enum):
    """When a variable's copies are brought together: `tf.VariableSynchronization`."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3
