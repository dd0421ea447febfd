# SPDX-License-Identifier: Apache-2.0
"""The contract between strategies and a framework.

An engine lives in one process and drives that process's `num_local_replicas` replicas. A value that
differs between replicas is passed as a tuple with one entry per *local* replica, in replica order.
All processes of a job call the same collectives in the same order; each call has a time limit, and an
error that names the replica waited for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stratagem._core.enums import Reduction

__all__ = ["Capabilities", "Engine", "Tensor"]

Tensor = Any  # the framework's own tensor: torch.Tensor or jax.Array
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine can do, for callers to ask instead of testing its name.

    Attributes:
        many_replicas_per_process: One process can hold several replicas (jax), or exactly one (torch).
        traced_functions: `run` traces a function once and compiles it, so Python side effects happen once.
    """

    many_replicas_per_process: bool
    traced_functions: bool


class Engine(ABC):
    """One framework, seen from the strategies.

    Public methods hold the checks; a framework fills in the methods that start with an underscore.
    """

    name: str
    capabilities: Capabilities

    @abstractmethod
    def local_devices(self) -> tuple[str, ...]:
        """The logical devices that this host offers, such as ("CPU:0", "CPU:1") or ("GPU:0",).

        GPUs alone where there are any, as `tf.distribute.MirroredStrategy()` takes them; `all_devices` has the rest.
        """

    @abstractmethod
    def all_devices(self) -> tuple[str, ...]:
        """Every logical device of this host, GPUs first, then CPUs."""

    @abstractmethod
    def connect(self, devices: Sequence[str]) -> None:
        """Join the job: replica i of the host computes on `devices[i]`. Idempotent for the same devices.

        Raises:
            JobMismatchError: the processes of the job do not agree on the devices.
            CollectiveTimeoutError: a process of the job did not come in time.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Leave the job and free what `connect` made. Idempotent."""

    @property
    @abstractmethod
    def num_replicas(self) -> int:
        """Replicas over all processes of the job (1 before `connect`)."""

    @property
    @abstractmethod
    def local_replica_ids(self) -> tuple[int, ...]:
        """The global ids of this process's replicas, in order."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's number in the job."""

    @abstractmethod
    def is_tensor(self, value: object) -> bool:
        """Whether `value` is this framework's tensor, or something it holds as one (a Keras variable)."""

    @abstractmethod
    def to_tensor(self, value: object) -> Tensor:
        """`value` (a number, array, tensor or Keras variable) as a tensor on this process's device."""

    @abstractmethod
    def run_on_replicas(
        self, fn: Callable[..., T], args: Sequence[tuple[Any, ...]], kwargs: Sequence[dict[str, Any]]
    ) -> tuple[T, ...]:
        """Call `fn(*args[i], **kwargs[i])` on local replica i's device; the results in replica order.

        Args:
            args: One tuple of positional arguments per local replica.
            kwargs: One dict of keyword arguments per local replica.
        """

    @abstractmethod
    def all_reduce(self, op: Reduction, values: Sequence[Sequence[Tensor]]) -> tuple[tuple[Tensor, ...], ...]:
        """Reduce each tensor over all replicas; differentiable in replica context.

        Integers are summed exactly; the MEAN of integers is float64, as in TensorFlow; half types keep their dtype.

        Args:
            op: SUM, MEAN, MIN or MAX.
            values: Per local replica, a sequence of tensors (packed into few messages).

        Returns:
            Per local replica, the reduced tensors, equal on all replicas.

        Raises:
            StructureMismatchError: shapes or dtypes differ between replicas.
            CollectiveMismatchError: replicas called different collectives.
            CollectiveTimeoutError: a replica did not come.
        """

    @abstractmethod
    def all_gather(self, values: Sequence[Sequence[Tensor]], axis: int) -> tuple[tuple[Tensor, ...], ...]:
        """Concatenate each tensor over replicas along `axis`; lengths along `axis` may differ."""

    @abstractmethod
    def all_gather_objects(self, values: Sequence[object]) -> tuple[Any, ...]:
        """One picklable object per local replica in, those of all replicas out, in replica order."""

    @abstractmethod
    def broadcast(self, values: Sequence[Sequence[Tensor]], source: int = 0) -> tuple[tuple[Tensor, ...], ...]:
        """Replica `source`'s tensors on every replica; shapes and dtypes must be equal on all."""

    @abstractmethod
    def barrier(self, name: str) -> None:
        """Return once every process of the job has called `barrier(name)`."""

    @abstractmethod
    def value_and_grad(
        self, fn: Callable[..., Any], variables: Sequence[Any], has_aux: bool = False
    ) -> Callable[..., tuple[Any, list[Tensor | None]]]:
        """A function that returns `fn`'s value and its gradients by the Keras `variables` (None where unused)."""

    @abstractmethod
    def snapshot(self, variables: Sequence[Any]) -> list[Tensor]:
        """Copies of the values of Keras `variables`, for `restore`."""

    @abstractmethod
    def restore(self, variables: Sequence[Any], saved: Sequence[Tensor]) -> None:
        """Put values taken by `snapshot` back into `variables`."""
