# SPDX-License-Identifier: Apache-2.0
"""The part of a strategy that libraries use, and that kinds of strategies differ in."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stratagem import keras_fit
from stratagem._core import contexts, device_names, env, nest, values
from stratagem._core.contexts import CurrentStrategy
from stratagem._core.enums import ReduceOp
from stratagem._core.input_options import InputContext, InputOptions
from stratagem._core.options import CommunicationOptions
from stratagem._core.values import PerReplica
from stratagem.data._feeds import Place
from stratagem.engines._progress import PROGRESS
from stratagem.engines.base import Engine
from stratagem.strategies import _collectives, _distributing
from stratagem.strategies._distributed_dataset import DistributedDataset
from stratagem.strategies._merge import MergePoint
from stratagem.strategies._replica_context import ReplicaContext

__all__ = ["StrategyExtended"]

_MERGE = "use get_replica_context().merge_call(...)"


class _TracedReplica:
    """The context of a function that an engine traces once for all replicas of a strategy."""

    def __init__(self, owner: CurrentStrategy) -> None:
        self.owner = owner

    def __call__(self, replica_id: Any) -> contextlib.AbstractContextManager[None]:
        replica = ReplicaContext.at(self.owner, replica_id, None)
        return contexts.entered(contexts.Context(self.owner, replica))


class _TracedUpdate:
    """Around a function of `extended.update` that an engine traces once for the copies of all replicas."""

    def __init__(self, owner: CurrentStrategy) -> None:
        self.owner = owner

    def __call__(self, replica_id: Any) -> contextlib.AbstractContextManager[None]:
        del replica_id
        return contexts.entered(contexts.Context(self.owner, updates_copies=True))


class StrategyExtended(ABC):
    """`strategy.extended`: the counterpart of `tf.distribute.StrategyExtended`.

    Args:
        container_strategy: The strategy that this belongs to.
    """

    # A strategy with one replica still wraps what a value function returns (MirroredStrategy), or not.
    wraps_single_values = False
    # What get_replica_context() returns outside every strategy; only the default strategy has one.
    default_replica_context: ReplicaContext | None = None

    def __init__(self, container_strategy: CurrentStrategy) -> None:
        self._container = container_strategy
        self._traced = _TracedReplica(container_strategy)
        self._traced_update = _TracedUpdate(container_strategy)

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine that drives the replicas (not in `tf.distribute`)."""

    @property
    def collectives(self) -> _collectives.Collectives:
        """What reduces and gathers over this strategy's replicas (not in `tf.distribute`)."""
        return self.engine

    @property
    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """The replicas' devices by their short names, in replica order (not in `tf.distribute`)."""

    @property
    def num_replicas(self) -> int:
        """Replicas over all processes (not in `tf.distribute`)."""
        return len(self.devices)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The replicas' devices by their long names, in replica order."""
        return tuple(device_names.full(name) for name in self.devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices that hold variables: each replica's own."""
        return self.worker_devices

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether every step's batch must have the same shape."""
        return False

    def connect(self) -> None:
        """Join the job and make Keras aware of strategies (not in `tf.distribute`). Cheap when done before."""
        self.engine.connect(self.devices)
        keras_fit.install()

    def enter_scope(self) -> None:
        """Make the strategy current (not in `tf.distribute`; `with strategy.scope()` is the public way)."""
        self.connect()
        contexts.push(contexts.Context(self._container))

    def leave_scope(self) -> None:
        """Undo `enter_scope`."""
        contexts.pop(self._container)

    def local_replica_contexts(self) -> tuple[ReplicaContext, ...]:
        """The replica contexts of this process, for code that runs replicas itself (not in `tf.distribute`)."""
        return self._contexts_meeting_at(_merge_point(self.engine.local_replica_ids))

    def joined(self, structures: Sequence[Any], *, keep_none: bool = True) -> Any:
        """One value per local replica as one distributed value; with one replica in all, that value itself."""
        if self.num_replicas == 1:
            return structures[0]
        return values.regroup(structures, self.engine.local_replica_ids, keep_none=keep_none)

    def call_on_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call `fn` in each local replica's context (not in `tf.distribute`; `strategy.run` is the public way)."""
        self.connect()
        PROGRESS.step += 1
        if self.engine.capabilities.traced_functions:
            return self.engine.run_traced(fn, args, kwargs, self._traced)
        ids = self.engine.local_replica_ids
        point = _merge_point(ids)
        replicas = self._contexts_meeting_at(point)
        args, kwargs = tuple(args), dict(kwargs)
        divided = bool(args or kwargs) and values.has_distributed((args, kwargs))
        rows = values.rows_of_batch((args, kwargs)) if divided else None
        failures: list[BaseException] = []

        def call(local: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            context = contexts.Context(self._container, replicas[local], rows=None if rows is None else rows[local])
            with contexts.entered(context):
                return fn(*args, **kwargs)

        count = len(ids)
        given: list[tuple[int, Any, Any]] = [(n, args, kwargs) for n in range(count)]
        if divided:
            given = [(n, values.local(args, n, count), values.local(kwargs, n, count)) for n in range(count)]
        if point is None:
            return self.joined(self.engine.run_on_replicas(call, given, [{}]))

        def call_and_leave(local: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            try:
                result = call(local, args, kwargs)
            except BaseException as failure:
                failures.append(failure)
                point.leave(ids[local], failure)
                raise
            point.leave(ids[local])
            return result

        try:
            results = self.engine.run_on_replicas(call_and_leave, given, [{}] * count)
        except BaseException:
            if failures:
                # The first to fail is the cause; the others only fail for want of it.
                raise failures[0]  # noqa: B904 - unchanged, as its replica raised it
            raise
        return self.joined(results)

    def values_from_function(self, make: Callable[[int], Any]) -> Any:
        """`make(replica id)` for each local replica as one distributed value (not in `tf.distribute`)."""
        self.connect()
        made = [make(replica) for replica in self.engine.local_replica_ids]
        if self.num_replicas > 1 or self.wraps_single_values:
            ids = self.engine.local_replica_ids
            return values.regroup(
                made, ids, lambda *given: self.engine.per_replica(PerReplica(*given)), keep_none=False
            )
        return made[0]

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: Any,
        destinations: object,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduce one value over replicas and put the result where `destinations` lives.

        Args:
            reduce_op: "SUM" or "MEAN".
            value: A value per replica.
            destinations: A variable, a distributed value or a device name.
            options: Accepted as in `tf.distribute`.

        Returns:
            The result on all replicas as a mirrored value; a plain tensor for a device name or a single replica.
        """
        return self.batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Iterable[tuple[Any, object]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """`reduce_to` for many values in few messages.

        Args:
            reduce_op: "SUM" or "MEAN".
            value_destination_pairs: The values, each with its destination.
            options: Accepted as in `tf.distribute`.

        Returns:
            The results, in the order of the pairs.
        """
        contexts.require_cross_replica(self._container, "extended.reduce_to", _MERGE)
        _collectives.check_options(options)
        pairs = list(value_destination_pairs)
        self.connect()
        op = _collectives.parse_op(reduce_op)
        reduced = _collectives.reduce(self.collectives, op, [value for value, _ in pairs], None)
        return [
            self._placed([results[n] for results in reduced], destination) for n, (_, destination) in enumerate(pairs)
        ]

    def broadcast_to(self, tensor: Any, destinations: object) -> Any:
        """`tensor` of replica 0 on all replicas.

        Args:
            tensor: A value that is not distributed.
            destinations: As for `reduce_to`.
        """
        contexts.require_cross_replica(self._container, "extended.broadcast_to", _MERGE)
        self.connect()
        count = len(self.engine.local_replica_ids)
        sent = self.engine.broadcast([[self.engine.to_tensor(tensor)]] * count)
        return self._placed([column[0] for column in sent], destinations)

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(var, *args, **kwargs)` for each local replica's copy of a variable, in cross-replica context.

        Args:
            var: The variable.
            fn: What to do with each copy.
            args: Further arguments; a value per replica gives each copy its own.
            kwargs: Further keyword arguments, likewise.
            group: Return the results as one value per replica rather than as a tuple.

        Returns:
            What `fn` returned, as a value per replica; with `group=False` a tuple of this process's replicas' results
            in the place of each.
        """
        contexts.require_cross_replica(self._container, "extended.update", _MERGE)
        self.connect()
        if self.engine.capabilities.traced_functions and not self.engine.is_tracing:
            results = self.engine.run_traced(fn, (var, *args), dict(kwargs or {}), self._traced_update)
            return results if group else nest.map_structure(_local_results, results)
        given = ((var, *args), dict(kwargs or {}))
        count = len(self.engine.local_replica_ids)
        with contexts.entered(contexts.Context(self._container, updates_copies=True)):
            local = [values.local(given, n, count) for n in range(count)]
            results = [fn(*some_args, **some_kwargs) for some_args, some_kwargs in local]
        joined = self.joined(results)
        return joined if group else nest.map_structure(_local_results, joined)

    def value_container(self, value: Any) -> Any:
        """The variable that `value` is a copy of: itself, as each process holds one copy."""
        return value

    def colocate_vars_with(self, colocate_with_variable: object) -> contextlib.AbstractContextManager[None]:
        """A context in which variables lie where `colocate_with_variable` does: every replica has copies of both."""
        del colocate_with_variable
        return contextlib.nullcontext()

    def variable_created_in_scope(self, v: object) -> bool:
        """Whether the variable `v` was made in a scope of this strategy."""
        return keras_fit.strategy_of_variable(v) is self._container

    @property
    def num_workers(self) -> int:
        """Machines, or tasks of the cluster; each has an input pipeline of its own (not in `tf.distribute`)."""
        return 1

    def distribute_dataset(self, dataset: Any, options: InputOptions | None = None) -> Any:
        """`dataset` divided (not in `tf.distribute`; `strategy.experimental_distribute_dataset` is the public way)."""
        self.connect()
        return _distributing.distribute(dataset, options, self.engine, self._place(), self.wraps_single_values)

    def distribute_from_function(
        self, make: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """What `make` returns for each pipeline, together (not in `tf.distribute`)."""
        self.connect()
        return _distributing.distribute_from_function(
            make, options, self.engine, self._place(), self.wraps_single_values
        )

    def _place(self) -> Place:
        return Place(self.num_replicas, tuple(self.engine.local_replica_ids), self.num_workers)

    def _contexts_meeting_at(self, point: MergePoint | None) -> tuple[ReplicaContext, ...]:
        return tuple(ReplicaContext.at(self._container, replica, point) for replica in self.engine.local_replica_ids)

    def _per_replica(self, parts: Sequence[Any], replica_ids: Sequence[int]) -> values.DistributedValues:
        return self.engine.per_replica(PerReplica(parts, replica_ids))

    def _placed(self, results: Sequence[Any], destination: object) -> Any:
        if self.num_replicas == 1 or isinstance(destination, str):
            return results[0]
        return values.regroup(results, self.engine.local_replica_ids, values.Mirrored)


def _local_results(leaf: Any) -> tuple[Any, ...]:
    return leaf.values if isinstance(leaf, values.DistributedValues) else (leaf,)


def _merge_point(local_replica_ids: Sequence[int]) -> MergePoint | None:
    # The only replica of a process has nobody to meet; collectives go straight to the engine.
    return None if len(local_replica_ids) == 1 else MergePoint(local_replica_ids, env.collective_timeout_seconds())
