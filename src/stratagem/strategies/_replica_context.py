# SPDX-License-Identifier: Apache-2.0
"""What the code of one replica can ask and do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stratagem._core import contexts, recorder, values
from stratagem._core.contexts import CurrentStrategy
from stratagem._core.enums import ReduceOp
from stratagem._core.options import CommunicationOptions
from stratagem.errors import ContextError
from stratagem.strategies import _collectives
from stratagem.strategies._merge import MergePoint

__all__ = ["ReplicaContext"]


class ReplicaContext:
    """Inside a function given to `strategy.run`: which replica this is, and how to reach the others.

    The counterpart of `tf.distribute.ReplicaContext`. `get_replica_context()` returns it.

    Args:
        strategy: The strategy that runs the replica.
        replica_id_in_sync_group: This replica's id.

    >>> from stratagem.engines import select
    >>> from stratagem.strategies import MirroredStrategy, get_replica_context
    >>> from stratagem.testing.fake_engine import FakeEngine
    >>> def step():
    ...     context = get_replica_context()
    ...     return context.all_reduce("SUM", context.replica_id_in_sync_group + 1)
    >>> with select.use(FakeEngine(2)):
    ...     MirroredStrategy(["CPU:0", "CPU:1"]).run(step)
    PerReplica:{
      0: array(3, dtype=int32),
      1: array(3, dtype=int32)
    }
    """

    def __init__(self, strategy: CurrentStrategy, replica_id_in_sync_group: int) -> None:
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._point: MergePoint | None = None

    @classmethod
    def at(cls, strategy: CurrentStrategy, replica_id: int, point: MergePoint | None) -> ReplicaContext:
        """The context of one of several replicas in this process, which meet at `point`."""
        context = cls(strategy, replica_id)
        context._point = point
        return context

    @property
    def strategy(self) -> CurrentStrategy:
        """The strategy that runs this replica."""
        return self._strategy

    @property
    def replica_id_in_sync_group(self) -> int:
        """This replica's id, from 0: an int, or an int32 tensor where the function is traced once for all replicas."""
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas run this function."""
        return self._strategy.num_replicas_in_sync

    @property
    def devices(self) -> tuple[str, ...]:
        """The long name of this replica's device, in a tuple; of all, where the function is traced once for all."""
        if self._strategy.extended.engine.is_tracing:
            return self._strategy.extended.worker_devices
        return (self._strategy.extended.worker_devices[self._replica_id],)

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None) -> Any:
        """Reduce `value` over all replicas; every replica gets the result. Gradients flow through it.

        Args:
            reduce_op: "SUM" or "MEAN".
            value: A number, tensor, or a nested structure of them; None inside it stays None.
            options: Accepted as in `tf.distribute`.

        Returns:
            The reduced value, in the same structure.

        Raises:
            ArgumentError: `reduce_op` is neither.
            ContextError: called outside the function that this context belongs to.
            StructureMismatchError: shapes or dtypes differ between replicas.
            CollectiveMismatchError: another replica made a different call.
            CollectiveTimeoutError: another replica made no call in time.
        """
        self._require_current("all_reduce")
        recorder.note_reduction()
        op = _collectives.parse_op(reduce_op)
        _collectives.check_options(options)
        engine = self._strategy.extended.collectives
        value, closed = self._strategy.extended.engine.opened(value)
        return closed(
            self._together("all_reduce", value, lambda given: _collectives.reduce_in_replica(engine, op, given))
        )

    def all_gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> Any:
        """Concatenate the `value` of all replicas along `axis`; every replica gets the result.

        Args:
            value: A tensor or a nested structure of them. Lengths along `axis` may differ between replicas.
            axis: The dimension to concatenate.
            options: Accepted as in `tf.distribute`.

        Returns:
            The concatenation, in the same structure.

        Raises:
            ArgumentError: the value has no such axis.
            ContextError: called outside the function that this context belongs to.
            StructureMismatchError: the other dimensions differ between replicas.
        """
        self._require_current("all_gather")
        _collectives.check_options(options)
        engine = self._strategy.extended.collectives
        value, closed = self._strategy.extended.engine.opened(value)
        return closed(
            self._together("all_gather", value, lambda given: _collectives.gather_in_replica(engine, given, axis))
        )

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `merge_fn(strategy, *args, **kwargs)` once for all replicas, in cross-replica context.

        Args:
            merge_fn: What to call; it sees each argument as a value per replica.
            args: This replica's positional arguments.
            kwargs: This replica's keyword arguments.

        Returns:
            This replica's part of what `merge_fn` returned.

        Raises:
            ContextError: called outside the function that this context belongs to.
            CollectiveMismatchError: another replica made a different call.
        """
        self._require_current("merge_call")
        given = (tuple(args), dict(kwargs or {}))
        return self._together("merge_call", given, lambda all_given: self._merge(merge_fn, all_given))

    def __repr__(self) -> str:
        return f"ReplicaContext(replica {self._replica_id} of {self.num_replicas_in_sync}, {self._strategy!r})"

    def _merge(self, merge_fn: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
        args, kwargs = self._strategy.extended.joined(given)
        with contexts.entered(contexts.Context(self._strategy)):
            result = merge_fn(self._strategy, *args, **kwargs)
        return [values.local(result, local, len(given)) for local in range(len(given))]

    def _together(self, call: str, value: Any, act: Callable[[Sequence[Any]], Sequence[Any]]) -> Any:
        if self._point is None:
            return act((value,))[0]
        return self._point.meet(self._replica_id, call, value, act)

    def _require_current(self, call: str) -> None:
        context = contexts.current()
        current = self._strategy.extended.default_replica_context if context is None else context.replica_context
        if current is not self:
            raise ContextError(
                f"ReplicaContext.{call} was called outside the replica function that the context belongs to",
                fix=f"call get_replica_context().{call}(...) inside the function given to strategy.run()",
            )
