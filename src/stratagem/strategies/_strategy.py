# SPDX-License-Identifier: Apache-2.0
"""The base of all strategies: public methods with their checks; kinds differ in their `extended`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from stratagem import keras_fit
from stratagem._core import contexts, nest, recorder, values
from stratagem._core.enums import ReduceOp
from stratagem._core.input_options import InputContext, InputOptions, InputReplicationMode
from stratagem._core.options import RunOptions, ValueContext
from stratagem.cluster_resolver import ClusterResolver
from stratagem.data._policy import ShardReport
from stratagem.engines.compiled_step import CompiledStep
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError, NotBuiltError
from stratagem.strategies import _collectives, _gradient_check, _tensorflow_habits
from stratagem.strategies._distributed_dataset import DistributedDataset
from stratagem.strategies._extended import StrategyExtended
from stratagem.strategies._gradient_check import GradientReport

__all__ = ["Strategy"]

_IN_REPLICA = "call it outside strategy.run(), or inside get_replica_context().merge_call(...)"


class _Scope:
    """What `strategy.scope()` returns: it can be entered again, and inside itself."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def __enter__(self) -> Strategy:
        contexts.require_cross_replica(self._strategy, "scope()", "open the scope around strategy.run(), not inside it")
        self._strategy.extended.enter_scope()
        return self._strategy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._strategy.extended.leave_scope()


class Strategy:
    """A way to train on several devices: the counterpart of `tf.distribute.Strategy`.

    Make one of its kinds, such as `MirroredStrategy`.

    Args:
        extended: The part in which kinds of strategies differ.

    >>> from stratagem.engines import select
    >>> from stratagem.strategies import MirroredStrategy
    >>> from stratagem.testing.fake_engine import FakeEngine
    >>> with select.use(FakeEngine(2)):
    ...     strategy = MirroredStrategy()
    ...     rows = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group + 1.0)
    ...     strategy.run(lambda row: row * 10, args=(rows,))
    PerReplica:{
      0: 10.0,
      1: 20.0
    }
    """

    def __init__(self, extended: StrategyExtended) -> None:
        self._extended = extended
        self._distributed: Any = None
        self._counts_as_one = False

    @property
    def extended(self) -> StrategyExtended:
        """The part that libraries use."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas that compute one step together, over all processes."""
        return 1 if self._counts_as_one else self._extended.num_replicas

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """The cluster's resolver: none for a strategy that runs on one machine."""
        return None

    def scope(self) -> contextlib.AbstractContextManager[Strategy]:
        """Make this strategy the current one inside a `with` block.

        Models, optimizers and metrics made there train under it, also when `fit` is called after the block.

        Raises:
            MixedStrategyError: on entering, inside another strategy's scope.
            ContextError: on entering, inside a replica function.

        >>> from stratagem.strategies import get_strategy, has_strategy
        >>> with get_strategy().scope():
        ...     has_strategy()
        False
        """
        return _Scope(self)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Call `fn` once on each replica.

        Args:
            fn: What to call.
            args: Its positional arguments. A value per replica gives each replica its own; others go to all.
            kwargs: Its keyword arguments, likewise.
            options: Accepted as in `tf.distribute`.

        Returns:
            The results: each leaf a value per replica, or with one replica the leaf itself. None stays None.

        Raises:
            ContextError: called inside a replica function, or inside a `tf.function`.
            StructureMismatchError: replicas of this process returned different structures.
            Exception: what `fn` raised on a replica.
        """
        self._require_cross_replica("run()")
        if not callable(fn):
            raise ArgumentTypeError(f"strategy.run was given {fn!r}, not a function", fix="strategy.run(fn, args=...)")
        if not isinstance(args, list | tuple):
            raise ArgumentError(
                f"strategy.run was given args of type {type(args).__name__}", fix="args=(value,), a tuple or a list"
            )
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ArgumentTypeError(
                f"strategy.run was given kwargs of type {type(kwargs).__name__}", fix='kwargs={"name": value}, a dict'
            )
        if options is not None and not isinstance(options, RunOptions):
            raise ArgumentTypeError(f"strategy.run was given options={options!r}", fix="options=RunOptions(...)")
        with _tensorflow_habits.explained("strategy.run()"):
            return self._extended.call_on_replicas(fn, args, kwargs or {})

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: int | Sequence[int] | None) -> Any:
        """One value out of those of all replicas.

        Args:
            reduce_op: "SUM" or "MEAN".
            value: A value per replica, as `run` returns it, or a nested structure of them.
            axis: None reduces over replicas only, and shapes must be equal. A number or several also reduce over
                those dimensions; then shapes may differ, and MEAN divides by the true number of elements.

        Returns:
            The reduced tensor, in the same structure, equal on all processes.

        Raises:
            ContextError: called inside a replica function.
            ArgumentError: another operation, an axis that a value does not have, or the SUM of a plain value.
            ArgumentTypeError: bools, strings or None.
            StructureMismatchError: shapes or dtypes differ between replicas.

        >>> from stratagem.engines import select
        >>> from stratagem.strategies import MirroredStrategy
        >>> from stratagem.testing.fake_engine import FakeEngine
        >>> with select.use(FakeEngine(2)):
        ...     strategy = MirroredStrategy()
        ...     ids = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group)
        ...     int(strategy.reduce("SUM", ids, axis=None))
        1
        """
        contexts.require_cross_replica(
            self, "reduce()", "use get_replica_context().all_reduce(...), or call reduce() on what run() returned"
        )
        op = _collectives.parse_op(reduce_op)
        self._extended.connect()
        return _collectives.reduce(self._extended.collectives, op, value, axis)[0]

    def gather(self, value: Any, axis: int) -> Any:
        """The values of all replicas concatenated along `axis`, in replica order.

        Args:
            value: A value per replica or a nested structure of them; lengths along `axis` may differ. A value that
                is not distributed is returned as it is.
            axis: The dimension to concatenate.

        Returns:
            The concatenation, equal on all processes.

        Raises:
            ContextError: called inside a replica function.
            ArgumentError: a value has no such axis.
            StructureMismatchError: other dimensions differ between replicas.
        """
        contexts.require_cross_replica(self, "gather()", "use get_replica_context().all_gather(...)")
        self._extended.connect()
        return _collectives.gather(self._extended.collectives, value, axis)[0]

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of the replicas that this process holds.

        Args:
            value: A value per replica, or a structure with some inside.

        Returns:
            One entry per replica of this process; a value that is not distributed is the only entry.
        """
        if self._extended.engine.is_tracing:
            raise ContextError(
                "experimental_local_results() was called inside a function that is traced once for all replicas, where "
                "there are no single results yet",
                fix="call it on what strategy.run() returned, or use strategy.reduce or strategy.gather",
            )
        value = nest.map_structure(values.copies_of, value)
        counts = {leaf.num_local for leaf in nest.flatten(value) if isinstance(leaf, values.DistributedValues)}
        if not counts:
            return (value,)
        count = counts.pop()
        return tuple(values.local(value, local, count) for local in range(count))

    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """A value per replica out of a function that is called for each.

        Args:
            value_fn: Called with a `ValueContext` for each replica of this process.

        Returns:
            The values per replica, each leaf of the structure for itself.

        Raises:
            ContextError: called inside a replica function.
            StructureMismatchError: the structures differ between replicas.
        """
        self._require_cross_replica("experimental_distribute_values_from_function()")
        replicas = self.num_replicas_in_sync
        return self._extended.values_from_function(lambda replica: value_fn(ValueContext(replica, replicas)))

    def experimental_distribute_dataset(self, dataset: Any, options: InputOptions | None = None) -> DistributedDataset:
        """Divide a data set of global batches among the replicas.

        In step k replica r gets its rows of global batch k: consecutive ones, and in a short last batch fewer or none.
        Among several workers the data set's own auto-shard policy decides who reads what; `shard_report()` says which.

        Args:
            dataset: A `tf.data.Dataset`, a torch `DataLoader`, a Keras `PyDataset`, a `stratagem.ArrayDataset`, a data
                set of Grain or of Hugging Face's `datasets`, or an iterable of batches (or a function that returns
                one), whose batches are structures of arrays.
            options: How the parts are fed to the replicas.

        Returns:
            The elements' parts as values per replica, to give to `run`; with one replica in all, the batches.

        Raises:
            ArgumentError: the options ask for what can't be.
            ArgumentTypeError: `dataset` is no data set of batches.
            ContextError: called in replica context.

        >>> import numpy as np
        >>> from stratagem.strategies import OneDeviceStrategy
        >>> from stratagem.testing.fake_engine import FakeEngine
        >>> from stratagem.engines import select
        >>> with select.use(FakeEngine(1)):
        ...     strategy = OneDeviceStrategy("CPU:0")
        ...     dataset = strategy.experimental_distribute_dataset([np.arange(2), np.arange(1)])
        ...     [len(batch) for batch in dataset]
        [2, 1]
        """
        self._require_cross_replica("experimental_distribute_dataset()")
        distributed = self._extended.distribute_dataset(dataset, options)
        self._distributed = distributed
        return distributed

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Make a data set on each worker, which gives its replicas one batch each in every step.

        Args:
            dataset_fn: Called once per worker, or with `InputReplicationMode.PER_REPLICA` once per replica, with the
                `InputContext` of that place; returns a data set of batches for one replica.
            options: How the batches are fed to the replicas.

        Raises:
            ArgumentError: the options ask for what can't be.
            ArgumentTypeError: the function returns no data set of batches.
            ContextError: called in replica context.
        """
        self._require_cross_replica("distribute_datasets_from_function()")
        distributed = self._extended.distribute_from_function(dataset_fn, options)
        self._distributed = distributed
        return distributed

    def shard_report(self) -> ShardReport:
        """How the data set that was distributed last is divided among the workers, and why (not in `tf.distribute`).

        Raises:
            ContextError: none has been.
        """
        if not isinstance(self._distributed, DistributedDataset):
            raise ContextError(
                "no data set has been distributed by this strategy",
                fix="strategy.experimental_distribute_dataset(dataset) first",
            )
        return self._distributed.shard_report()

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: InputOptions | None = None
    ) -> Any:
        """The older name of `distribute_datasets_from_function`."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def check_gradients(
        self, step_fn: Callable[..., Any], batch: Sequence[Any], variables: Sequence[Any] = ()
    ) -> GradientReport:
        """Whether a step function's gradients on all replicas are those of one device (not in `tf.distribute`).

        Calls `step_fn` twice: with the whole batch as the only replica, and on every replica with its rows of it.
        `optimizer.apply`, of a Keras optimizer, changes nothing meanwhile.

        Args:
            step_fn: What `run` is given. It must not draw random numbers, as Dropout does.
            batch: The arguments of one call: structures of arrays with the rows of a global batch.
            variables: What else the function changes, such as those of metrics; they get their values back.

        Returns:
            The verdict, and what to do; `print` it.

        Raises:
            ArgumentError: the function applies no gradients, or, with JAX, the rows do not divide evenly.
            ContextError: called in replica context.
        """
        self._require_cross_replica("check_gradients()")
        self._extended.connect()
        engine = self._extended.engine
        saved = engine.snapshot(variables)
        try:
            one = self._gradients_of_one(step_fn, batch)
            several = _gradient_check.gradients_of_all(self, step_fn, batch)
        finally:
            engine.restore(variables, saved)
        return _gradient_check.compared(
            one.names, one.gradients, several, self.num_replicas_in_sync, sums_by_hand=one.reductions > 0
        )

    def _gradients_of_one(self, step_fn: Callable[..., Any], batch: Sequence[Any]) -> recorder.Recorded:
        # The function may ask this strategy, by its name, how many replicas there are.
        self._counts_as_one = True
        try:
            with contexts.outside_all():
                return _gradient_check.gradients_of(self._extended.engine, step_fn, batch)
        finally:
            self._counts_as_one = False

    def compile_for(self, topology: str, model: Any, batch: Any) -> CompiledStep:
        """Compile a model's training step for a TPU that need not be there (not in `tf.distribute`).

        Args:
            topology: The TPU slice, such as "v5e:2x4".
            model: A compiled model, made in this strategy's scope.
            batch: One global batch: `(x, y)` or `(x, y, sample_weight)`. Only shapes and dtypes count, so
                `jax.ShapeDtypeStruct`s will do.

        Returns:
            What it needs: compile time, collectives, memory of a chip, and whether it fits.

        Raises:
            BackendError: Keras's backend is not jax, or libtpu is not installed.
            ArgumentError: there is no such slice, or the rows of the batch can't be divided among its replicas.
            ContextError: called inside a replica function.
        """
        self._require_cross_replica("compile_for()")
        return keras_fit.compile_for(topology, model, batch)

    def unwrap(self, value: Any) -> tuple[Any, ...]:
        """The older name of `experimental_local_results`."""
        return self.experimental_local_results(value)

    def group(self, value: Any, name: str | None = None) -> None:
        """Nothing to do: in TensorFlow 1 it made one operation of several."""
        del value, name

    def colocate_vars_with(self, colocate_with_variable: object) -> contextlib.AbstractContextManager[None]:
        """The older name of `extended.colocate_vars_with`."""
        return self._extended.colocate_vars_with(colocate_with_variable)

    def configure(
        self,
        session_config: object = None,
        cluster_spec: object = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> NoReturn:
        """TensorFlow 1 only: raises `NotBuiltError`."""
        del session_config, cluster_spec, task_type, task_id
        _only_in_tf1("configure", "give the strategy its devices when you make it")

    def make_dataset_iterator(self, dataset: Any) -> NoReturn:
        """TensorFlow 1 only: raises `NotBuiltError`."""
        del dataset
        _only_in_tf1("make_dataset_iterator", "give the data set to model.fit")

    def make_input_fn_iterator(
        self, input_fn: Callable[..., Any], replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    ) -> NoReturn:
        """TensorFlow 1 only: raises `NotBuiltError`."""
        del input_fn, replication_mode
        _only_in_tf1("make_input_fn_iterator", "give the data set to model.fit")

    def experimental_run(self, fn: Callable[..., Any], input_iterator: Any = None) -> NoReturn:
        """TensorFlow 1 only: raises `NotBuiltError`."""
        del fn, input_iterator
        _only_in_tf1("experimental_run", "use strategy.run(fn, args=(...))")

    def update_config_proto(self, config_proto: Any) -> NoReturn:
        """TensorFlow 1 only: raises `NotBuiltError`."""
        del config_proto
        _only_in_tf1("update_config_proto", "there are no sessions to configure")

    def __repr__(self) -> str:
        extended = self._extended
        return (
            f"{type(self).__name__}(engine={extended.engine.name}, devices={extended.devices}, "
            f"replicas={extended.num_replicas})"
        )

    def _require_cross_replica(self, call: str) -> None:
        contexts.require_cross_replica(self, call, _IN_REPLICA)


def _only_in_tf1(method: str, instead: str) -> NoReturn:
    raise NotBuiltError(f"Strategy.{method} belongs to TensorFlow 1 and has no counterpart here", fix=instead)
