# SPDX-License-Identifier: Apache-2.0
"""Every error that Stratagem raises.

StratagemError
    ContextError (RuntimeError)             called in the wrong context
        MixedStrategyError                  two strategies nested in one another
    BackendError (RuntimeError)             the Keras backend is not one that we drive
    DeviceError (ValueError)                unknown, absent or duplicate device
    ArgumentError (ValueError)              an argument that can't be used
    ArgumentTypeError (TypeError)           an argument of the wrong type
    BatchMismatchError (ValueError)         the parts of one batch disagree in rows
    TracingError (TypeError)                a function that can't be traced once for all replicas
    StructureMismatchError (ValueError)     replicas hold values that don't fit together
    CollectiveMismatchError (RuntimeError)  replicas called different collectives
    CollectiveTimeoutError (TimeoutError)   a replica did not reach a collective in time
    JobMismatchError (RuntimeError)         processes of one job disagree about the program
    ReplicaFailedError (RuntimeError)       another replica's process failed
        WorkerLostError                     it died, froze or can't be reached any more
    CheckpointError (OSError)               a checkpoint that can't be written or read
    CheckpointMismatchError (ValueError)    a checkpoint of another model
    LaunchError (RuntimeError)              processes could not be started
    NotBuiltError (NotImplementedError)     a name of tf.distribute that is not built yet
    OutOfRangeError (IndexError)            a data set has no more elements
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendError",
    "BatchMismatchError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "ContextError",
    "DeviceError",
    "JobMismatchError",
    "LaunchError",
    "MixedStrategyError",
    "NotBuiltError",
    "OutOfRangeError",
    "ReplicaFailedError",
    "StratagemError",
    "StructureMismatchError",
    "TracingError",
    "WorkerLostError",
]


class StratagemError(Exception):
    """The base of all our errors: what was wrong and, where there is one, the way out.

    The parts stay in `args`, so an error crosses processes by pickle unchanged.

    Args:
        problem: One sentence: what was wrong, and where.
        fix: One sentence or a line to paste: what to do.

    >>> print(StratagemError("2 devices were asked for", fix="devices=['CPU:0']"))
    2 devices were asked for
      fix: devices=['CPU:0']
    """

    def __init__(self, problem: str, fix: str | None = None) -> None:
        super().__init__(problem, fix)

    @property
    def problem(self) -> str:
        """What was wrong, and where."""
        return self.args[0]

    @property
    def fix(self) -> str | None:
        """What to do about it, or None."""
        return self.args[1]

    def __str__(self) -> str:
        if self.fix is None:
            return self.problem
        return f"{self.problem}\n  fix: {self.fix}"


class ContextError(StratagemError, RuntimeError):
    """A call in the wrong context: replica for cross-replica, or the other way."""


class MixedStrategyError(ContextError):
    """Two different strategies nested in one another."""


class BackendError(StratagemError, RuntimeError):
    """The Keras backend in use is not one that Stratagem drives."""


class OutOfRangeError(StratagemError, IndexError):
    """An element was asked for past the end of a data set: `tf.errors.OutOfRangeError`."""


class DeviceError(StratagemError, ValueError):
    """A device that is unknown, absent, named twice, or too many devices."""


class ArgumentError(StratagemError, ValueError):
    """An argument whose value can't be used."""


class ArgumentTypeError(StratagemError, TypeError):
    """An argument of a type that can't be used."""


class BatchMismatchError(StratagemError, ValueError):
    """The parts of one batch (inputs, targets, weights) disagree in their rows."""


class TracingError(StratagemError, TypeError):
    """A function that is traced once for all replicas asked a tensor for its value, as `if replica_id == 0:` does."""


class StructureMismatchError(StratagemError, ValueError):
    """Replicas hold values whose structure, shape or dtype don't fit together."""


class CollectiveMismatchError(StratagemError, RuntimeError):
    """Replicas called different collectives, or a different number of them."""


class CollectiveTimeoutError(StratagemError, TimeoutError):
    """A replica did not reach a collective within the time limit."""


class JobMismatchError(StratagemError, RuntimeError):
    """The processes of one job run different programs, data or options."""


class ReplicaFailedError(StratagemError, RuntimeError):
    """Another replica's process failed; its traceback is part of the text."""


class WorkerLostError(ReplicaFailedError):
    """Another process of the job died, froze or can't be reached any more; nobody catching it, the exit code is 75."""


class CheckpointError(StratagemError, OSError):
    """A checkpoint that can't be written or read."""


class CheckpointMismatchError(StratagemError, ValueError):
    """A checkpoint of other variables than those it is to be restored into."""


class LaunchError(StratagemError, RuntimeError):
    """The processes of a job could not be started."""


class NotBuiltError(StratagemError, NotImplementedError):
    """A name of `tf.distribute` that Stratagem does not build yet."""
