# SPDX-License-Identifier: Apache-2.0
"""The contract between strategies and a framework.

An engine lives in one process and drives that process's `num_local_replicas` replicas. A value that
differs between replicas is passed as a tuple with one entry per *local* replica, in replica order.
All processes of a job call the same collectives in the same order; each call has a time limit, and an
error that names the replica waited for.
"""

from __future__ import annotations

import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from stratagem._core.cluster import Cluster
from stratagem._core.enums import Reduction
from stratagem._core.options import CommunicationImplementation, CommunicationOptions
from stratagem._core.values import DistributedValues
from stratagem.data._prefetch import Ahead
from stratagem.engines._handing_out import Said, items_of, said_of
from stratagem.engines._stop import Alone, StopAgreement
from stratagem.errors import NotBuiltError

__all__ = ["Capabilities", "Engine", "ReplicaEntry", "Tensor"]

_logger = logging.getLogger(__name__)

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


class ReplicaEntry(Protocol):
    """What makes the code in a `with` block that of a replica of `owner`."""

    @property
    def owner(self) -> object:
        """The strategy; functions that another one runs are traced anew."""

    def __call__(self, replica_id: Any) -> AbstractContextManager[Any]: ...


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

    def device_coordinates(self, name: str) -> tuple[int, int, int, int] | None:
        """Where a device of a TPU lies among the others: x, y, z and core. None for devices that form no mesh."""
        del name
        return None

    def join(self, cluster: Cluster) -> None:
        """Become a task of a job on several hosts; its devices are then those of all tasks. Idempotent.

        Raises:
            CollectiveTimeoutError: a task did not come in time.
            ContextError: the framework has computed already, and can't be told of other hosts any more.
        """
        raise NotBuiltError(
            f"a job of {cluster.world_size} hosts is not built yet with the {self.name} engine",
            fix="set KERAS_BACKEND=jax, or train on one host",
        )

    def communicate_by(self, options: CommunicationOptions) -> None:
        """Take a strategy's wishes about its collectives, before it connects; says which of them have no effect."""
        if options.bytes_per_pack:
            _logger.warning(
                "CommunicationOptions.bytes_per_pack=%d has no effect with %s, which packs by itself",
                options.bytes_per_pack,
                self.name,
            )
        if options.implementation is CommunicationImplementation.RING:
            _logger.warning(
                "CommunicationImplementation.RING has no effect with %s, which chooses by itself", self.name
            )

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

    def opened(self, value: Any) -> tuple[Any, Callable[[Any], Any]]:
        """`value` in lists instead of in containers that only the framework knows, and what undoes that."""
        return value, _itself

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

    @property
    def is_tracing(self) -> bool:
        """Whether a replica function is being traced: `local_replica_ids` is then one traced id, of whoever runs it."""
        return False

    def fetched(self, value: object) -> Tensor:
        """`to_tensor(value)` of something that was read ahead: the copy to an accelerator may still be under way."""
        return self.to_tensor(value)

    def refuse_reading_in_trace(self) -> None:  # noqa: B027 - engines that trace nothing have nothing to refuse
        """Called before the next element of a data set is taken: a trace would see that one for ever.

        Raises:
            TracingError: a function is being traced.
        """

    def run_traced(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], inside: ReplicaEntry
    ) -> Any:
        """Call `fn(*args, **kwargs)` on every replica, traced once for all: of engines with `traced_functions`.

        Args:
            fn: What to call.
            args: Its positional arguments; distributed values give each replica its own.
            kwargs: Its keyword arguments, likewise.
            inside: Enters the replica's context around `fn`.

        Returns:
            The results: each leaf a value per replica, or with one replica in all the leaf itself. None stays None.
        """
        raise NotImplementedError(f"the engine {self.name} traces no functions")

    def compiled(self, fn: Callable[..., Any], jit_compile: bool | None) -> Callable[..., Any]:
        """`fn` in the form in which this engine runs it fastest; `fn` itself where there is nothing to gain.

        Args:
            fn: A function that may read and write Keras variables and call `Strategy.run`.
            jit_compile: What the user asked for: True, False or, for the engine's own choice, None.
        """
        del jit_compile
        return fn

    def per_replica(self, values: DistributedValues) -> DistributedValues:
        """`values`, which a strategy has just made, in the form in which this engine keeps them."""
        return values

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

    def all_processes_objects(self, value: object) -> tuple[Any, ...]:
        """One picklable object per process in, those of all processes out, in the order of their replicas."""
        count = len(self.local_replica_ids)  # all processes have equally many
        return self.all_gather_objects([value, *[None] * (count - 1)])[::count]

    def take_object(self, value: object, source: int, what: str) -> Any:
        """The picklable object that the process of replica `source` brought; the others' is not looked at.

        Args:
            value: This process's.
            source: A replica.
            what: Names it in errors.
        """
        del what
        local = self.local_replica_ids
        return self.all_processes_objects(value if source in local else None)[source // len(local)]

    def hand_out(self, items: Iterator[Any] | None, source: int, what: str, depth: int = 0) -> Iterator[Any]:
        """Each of `items`, which the process of replica `source` reads, in every process.

        All processes call this together, and go on from item to item together. An error in reading is raised where the
        item is asked for: by the process that reads itself, by the others as ReplicaFailedError.

        Args:
            items: What to read; None in the other processes.
            source: A replica.
            what: Names an item in errors.
            depth: How many items are read before they are asked for, in a thread; with 0 there is no thread.
        """
        if len(self.local_replica_ids) == self.num_replicas:
            assert items is not None
            return Ahead(items, depth) if depth else items
        pickled = None if items is None else map(Said.pickled, said_of(items))
        return items_of(self._hand_out(pickled, source, what, depth), source, what)

    def _hand_out(
        self, pickled: Iterator[tuple[Said, bytes]] | None, source: int, what: str, depth: int
    ) -> Iterator[Said]:
        """`hand_out` to other processes, of what is said of items."""
        if pickled is not None and depth:
            pickled = Ahead(pickled, depth)
        return self._taken(pickled, source, what)

    def _taken(self, pickled: Iterator[tuple[Said, bytes]] | None, source: int, what: str) -> Iterator[Said]:
        while True:
            mine = None if pickled is None else next(pickled)
            data = self.take_object(None if mine is None else mine[1], source, what)
            yield pickle.loads(data) if mine is None else mine[0]

    @abstractmethod
    def broadcast(self, values: Sequence[Sequence[Tensor]], source: int = 0) -> tuple[tuple[Tensor, ...], ...]:
        """Replica `source`'s tensors on every replica; shapes and dtypes must be equal on all."""

    @abstractmethod
    def barrier(self, name: str) -> None:
        """Return once every process of the job has called `barrier(name)`."""

    def stop_agreement(self) -> StopAgreement:
        """How this job's processes stop at the same step, once one of them was told to; for good."""
        return Alone()

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


def _itself(value: Any) -> Any:
    return value
