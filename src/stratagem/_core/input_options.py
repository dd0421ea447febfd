# SPDX-License-Identifier: Apache-2.0
"""What a user says about input pipelines, and what a pipeline is told about its place."""

from __future__ import annotations

import enum
from typing import NamedTuple

from stratagem.errors import ArgumentError

__all__ = ["AutoShardPolicy", "InputContext", "InputOptions", "InputReplicationMode"]


class AutoShardPolicy(enum.IntEnum):
    """How a data set is divided among processes: `tf.data.experimental.AutoShardPolicy`."""

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class InputReplicationMode(enum.Enum):
    """How often a data set function is called: `tf.distribute.InputReplicationMode`."""

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class InputOptions(NamedTuple):
    """How a distributed data set is fed to the replicas: `tf.distribute.InputOptions`.

    >>> InputOptions(experimental_fetch_to_device=False).experimental_fetch_to_device
    False
    """

    experimental_fetch_to_device: bool = True
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1


class InputContext:
    """What a data set function is told about its place: `tf.distribute.InputContext`.

    Args:
        num_input_pipelines: How many times the function is called over all processes.
        input_pipeline_id: The number of this call.
        num_replicas_in_sync: Replicas over all processes.

    >>> InputContext(num_replicas_in_sync=4).get_per_replica_batch_size(64)
    16
    """

    def __init__(self, num_input_pipelines: int = 1, input_pipeline_id: int = 0, num_replicas_in_sync: int = 1) -> None:
        self._num_input_pipelines = num_input_pipelines
        self._input_pipeline_id = input_pipeline_id
        self._num_replicas_in_sync = num_replicas_in_sync

    @property
    def num_input_pipelines(self) -> int:
        """How many input pipelines there are."""
        return self._num_input_pipelines

    @property
    def input_pipeline_id(self) -> int:
        """The number of this pipeline, from 0."""
        return self._input_pipeline_id

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas over all processes."""
        return self._num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The rows of a global batch that one replica gets.

        Raises:
            ArgumentError: `global_batch_size` is no multiple of `num_replicas_in_sync`.
        """
        replicas = self._num_replicas_in_sync
        if global_batch_size % replicas:
            lower = global_batch_size // replicas * replicas
            sizes = f"{lower} or {lower + replicas}" if lower else str(replicas)
            raise ArgumentError(
                f"a global batch of {global_batch_size} rows is not divisible by {replicas} replicas",
                fix=f"batch by {sizes} rows",
            )
        return global_batch_size // replicas

    def __repr__(self) -> str:
        return (
            f"InputContext(num_input_pipelines={self._num_input_pipelines}, "
            f"input_pipeline_id={self._input_pipeline_id}, num_replicas_in_sync={self._num_replicas_in_sync})"
        )
