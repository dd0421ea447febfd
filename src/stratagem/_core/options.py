# SPDX-License-Identifier: Apache-2.0
"""Small data classes that users hand to strategies."""

from __future__ import annotations

import enum
from typing import NamedTuple

from stratagem.errors import ArgumentError

__all__ = [
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "RunOptions",
    "ValueContext",
]


class RunOptions(NamedTuple):
    """Options of `strategy.run`, all about TensorFlow's compiler: `tf.distribute.RunOptions`."""

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: object = None


class CommunicationImplementation(enum.Enum):
    """What carries collectives: `tf.distribute.experimental.CommunicationImplementation`."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


CollectiveCommunication = CommunicationImplementation


class CommunicationOptions:
    """Wishes about one collective: `tf.distribute.experimental.CommunicationOptions`.

    Args:
        bytes_per_pack: The size of one message; 0 leaves it to the engine.
        timeout_seconds: How long a replica waits for the others; None for the job's limit.
        implementation: What carries the collective.

    Raises:
        ArgumentError: a value that can't be.

    >>> CommunicationOptions(implementation="ring").implementation
    <CommunicationImplementation.RING: 'RING'>
    """

    def __init__(
        self,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO,
    ) -> None:
        if bytes_per_pack < 0:
            raise ArgumentError(f"bytes_per_pack={bytes_per_pack} is negative", fix="bytes_per_pack=0")
        if timeout_seconds is not None and timeout_seconds <= 0:
            raise ArgumentError(f"timeout_seconds={timeout_seconds} is not positive", fix="timeout_seconds=None")
        self.bytes_per_pack = bytes_per_pack
        self.timeout_seconds = timeout_seconds
        self.implementation = _implementation(implementation)

    def __repr__(self) -> str:
        return (
            f"CommunicationOptions(bytes_per_pack={self.bytes_per_pack}, timeout_seconds={self.timeout_seconds}, "
            f"implementation={self.implementation.name})"
        )


class CollectiveHints(CommunicationOptions):
    """The older name of `CommunicationOptions`: `tf.distribute.experimental.CollectiveHints`."""

    def __init__(self, bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> None:
        super().__init__(bytes_per_pack, timeout_seconds)


class ValueContext:
    """Which replica a value is for: `tf.distribute.experimental.ValueContext`.

    Args:
        replica_id_in_sync_group: The replica that the value is for.
        num_replicas_in_sync: How many replicas there are.
    """

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self._replica_id_in_sync_group = replica_id_in_sync_group
        self._num_replicas_in_sync = num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> int:
        """The replica that the value is for."""
        return self._replica_id_in_sync_group

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return self._num_replicas_in_sync

    def __repr__(self) -> str:
        return (
            f"ValueContext(replica_id_in_sync_group={self._replica_id_in_sync_group}, "
            f"num_replicas_in_sync={self._num_replicas_in_sync})"
        )


def _implementation(given: CommunicationImplementation | str) -> CommunicationImplementation:
    name = given.upper() if isinstance(given, str) else given
    try:
        return CommunicationImplementation(name)
    except ValueError:
        raise ArgumentError(
            f"implementation={given!r} is not one of AUTO, RING, NCCL", fix='implementation="AUTO"'
        ) from None
