# SPDX-License-Identifier: Apache-2.0
"""Variables of which each replica has a copy: `tf.Variable` with its `synchronization` and `aggregation`."""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import keras
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from stratagem._core import contexts, values
from stratagem._core.contexts import CurrentStrategy
from stratagem._core.enums import ReduceOp, Reduction, VariableAggregation, VariableSynchronization
from stratagem._core.values import DistributedValues
from stratagem.errors import ArgumentError, ArgumentTypeError, MixedStrategyError
from stratagem.keras_fit import _attachment
from stratagem.keras_fit._copies import Copies

__all__ = ["DistributedVariable", "Variable", "init_variable", "meaning_the_copy", "read_together"]

_COPIES = {"torch": "stratagem.keras_fit._torch._copies", "jax": "stratagem.keras_fit._jax._copies"}
_KERAS_NAMES = {aggregation: aggregation.name.lower() for aggregation in VariableAggregation}


class _Thread(threading.local):
    depth = 0


_THREAD = _Thread()


class _Place(enum.Enum):
    """Who reads or writes: a replica, the code around the replicas, or something that means the one copy here."""

    REPLICA = enum.auto()
    CROSS_REPLICA = enum.auto()
    COPY = enum.auto()


def _second(_: Any, given: Any) -> Any:
    return given


@contextlib.contextmanager
def meaning_the_copy() -> Iterator[None]:
    """Inside, variables stand for the copy here: their synchronization and aggregation don't count."""
    _THREAD.depth += 1
    try:
        yield
    finally:
        _THREAD.depth -= 1


@functools.cache
def _copies() -> Copies:
    return cast(Copies, importlib.import_module(_COPIES[keras.backend.backend()]))


class DistributedVariable(keras.Variable, values.ReplicaVariable):
    """What `stratagem.Variable` makes: a `keras.Variable` of which each replica has a copy."""

    held_value: Any = None  # what all processes read together, while one of them saves

    def _place(self) -> _Place:
        # Where Keras only works out shapes, nothing is to be brought together.
        if _THREAD.depth or in_symbolic_scope():
            return _Place.COPY
        context, strategy = contexts.current(), self._strategy
        if context is not None and strategy is not None and context.strategy is not strategy:
            raise MixedStrategyError(
                f"variable {self.path!r} was made in the scope of {strategy!r}, and is used while another strategy is "
                f"current: {context.strategy!r}",
                fix="make and use a variable under one strategy",
            )
        if strategy is None or strategy.num_replicas_in_sync == 1 or (context is not None and context.updates_copies):
            return _Place.COPY
        step = _copies().keras_step()
        if step is not None:
            return _Place.REPLICA if step else _Place.COPY
        return _Place.CROSS_REPLICA if context is None or context.is_cross_replica else _Place.REPLICA

    @property
    def _strategy(self) -> CurrentStrategy | None:
        return _attachment.strategy_of_variable(self)

    @property
    def distribute_strategy(self) -> CurrentStrategy | None:
        """The strategy in whose scope it was made, or None."""
        return self._strategy

    @property
    def _syncs_on_read(self) -> bool:
        return self.synchronization == "on_read"

    @property
    def value(self) -> Any:
        """The value here: in a replica its copy; outside, with synchronization ON_READ, that of all together.

        Raises:
            ArgumentError: read outside of replicas, with ON_READ and no aggregation to read it by.
        """
        if self._place() is not _Place.CROSS_REPLICA or not self._syncs_on_read:
            return super().value
        return self._read_all() if self.held_value is None else self.held_value

    @property
    def own_value(self) -> Any:
        """The copy here, whatever the synchronization (not in `tf.distribute`)."""
        with meaning_the_copy():
            return self.value

    def assign_own(self, value: Any) -> None:
        """Write the copy here, whatever the aggregation (not in `tf.distribute`)."""
        self._store(value)

    @property
    def replica_values(self) -> DistributedValues:
        """The copies of the replicas that this process holds (not in `tf.distribute`)."""
        return _copies().all_here(self)

    @property
    def values(self) -> tuple[Any, ...]:
        """The copies of the replicas that this process holds, in replica order."""
        return self.replica_values.values

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Write a value: in a replica by the aggregation, outside on all replicas.

        Args:
            value: A tensor or a number; outside of replicas also a value per replica.
            use_locking, name: Accepted as in TensorFlow.
            read_value: Return the new value rather than None.

        Raises:
            ArgumentError: a Python number in a replica with aggregation SUM, whose meaning would depend on the number
                of replicas.
            ArgumentTypeError: a value per replica outside of replicas with ON_READ.
            MixedStrategyError: another strategy is current.
        """
        del use_locking, name
        return self._change("assign", _second, value, read_value)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Add to the value; arguments and errors as for `assign`.

        Raises:
            ArgumentError: outside of replicas with ON_READ and aggregation SUM, as the sum is not the sum of copies.
        """
        del use_locking, name
        return self._change("assign_add", operator.add, delta, read_value)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtract from the value; arguments and errors as for `assign_add`."""
        del use_locking, name
        return self._change("assign_sub", operator.sub, delta, read_value)

    def read_value(self) -> Any:
        """The value as `value` gives it."""
        return self.value

    def _change(self, call: str, change: Callable[[Any, Any], Any], given: Any, read_value: bool) -> Any:
        place = self._place()
        if place is _Place.CROSS_REPLICA and self._syncs_on_read:
            new = self._change_all(call, change, given)
        else:
            if isinstance(given, DistributedValues):
                given = _copies().as_copies(given)
            elif place is _Place.REPLICA and not self._syncs_on_read:
                given = self._aggregated(call, given)
            elif self._syncs_on_read and _copies().keras_step() is not None:
                if not _copies().has_rows():
                    return self.own_value if read_value else None
                if place is _Place.COPY and self.aggregation == "sum" and self._strategy is not None:
                    # The step sees the whole batch, in the name of all replicas.
                    given = given / self._strategy.num_replicas_in_sync
            given = self._convert_to_tensor(given, dtype=self._dtype)
            new = self._store(given if call == "assign" else change(self.own_value, given))
        return new if read_value else None

    def _change_all(self, call: str, change: Callable[[Any, Any], Any], given: Any) -> Any:
        if isinstance(given, DistributedValues):
            raise ArgumentTypeError(
                f"{call} of variable {self.path!r}, which is brought together when it is read, was given a value per "
                "replica outside of replicas",
                fix="give one value, or write each replica's copy in strategy.run() or strategy.extended.update()",
            )
        given = self._convert_to_tensor(given, dtype=self._dtype)
        if call == "assign":
            replicas = self._strategy.num_replicas_in_sync if self._strategy else 1
            self._store(given / replicas if self.aggregation == "sum" else given)
            return given
        if self.aggregation == "sum":
            raise ArgumentError(
                f"{call} of variable {self.path!r} was called outside of replicas, but its value there is the SUM of "
                "the replicas' copies",
                fix=f"call {call} in strategy.run(), or assign(...) the whole value",
            )
        copy = self.own_value if self.aggregation == "none" else self._read_all()
        return self._store(change(copy, given))

    def _aggregated(self, call: str, given: Any) -> Any:
        if self.aggregation == "none":
            return given
        if self.aggregation == "sum" and isinstance(given, (int, float)):
            raise ArgumentError(
                f"{call} of variable {self.path!r} was given the Python number {given} in a replica; by its "
                "aggregation SUM that would be as many times the number as there are replicas",
                fix="give a tensor of each replica's own, or make the variable with aggregation MEAN",
            )
        tensor = self._convert_to_tensor(given, dtype=self._dtype)
        op = None if self.aggregation == "only_first_replica" else Reduction[self.aggregation.upper()]
        return _copies().over_replicas(op, tensor, self._engine)

    def _read_all(self) -> Any:
        strategy = self._strategy
        assert strategy is not None, "read for all replicas of one"
        if self.aggregation == "none":
            raise ArgumentError(
                f"variable {self.path!r} was read outside of replicas, but it has a value per replica and no "
                "aggregation",
                fix="make it with aggregation SUM, MEAN or ONLY_FIRST_REPLICA, or ask "
                "strategy.experimental_local_results(variable)",
            )
        if self.aggregation == "only_first_replica":
            return _copies().of_first_replica(self, self._engine)
        total = strategy.reduce(ReduceOp(self.aggregation), self.replica_values, axis=None)
        return self._convert_to_tensor(total, dtype=self._dtype)

    @property
    def _engine(self) -> Any:
        assert self._strategy is not None, "made under a strategy"
        return self._strategy.extended.engine

    def _store(self, value: Any) -> Any:
        with meaning_the_copy():
            return super().assign(keras.ops.stop_gradient(value))


def Variable(
    initial_value: Any = None,
    trainable: bool | None = None,
    validate_shape: bool = True,
    caching_device: object = None,
    name: str | None = None,
    variable_def: object = None,
    dtype: Any = None,
    import_scope: object = None,
    constraint: Callable[[Any], Any] | None = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    shape: Any = None,
) -> DistributedVariable:
    """A Keras variable that is kept on every replica: `tf.Variable`.

    In a replica a write is first aggregated over replicas (ON_WRITE, which AUTO is), or stays the replica's own and is
    aggregated when the variable is read outside of replicas (ON_READ). Writes outside of replicas reach all of them.

    Args:
        initial_value: A tensor, an array, a number, or a function without arguments that returns one. Replica 0's
            counts for all.
        trainable: True by default, with ON_READ False.
        validate_shape, caching_device, variable_def, import_scope: Accepted as in TensorFlow where they are the
            defaults.
        name: Without slashes.
        dtype: By default that of the value; Python numbers are float32 and int32.
        constraint: Called with the value after each update by an optimizer.
        synchronization: AUTO, ON_WRITE or ON_READ.
        aggregation: What a replica's write, or reading outside of replicas, does: NONE, SUM, MEAN or
            ONLY_FIRST_REPLICA.
        shape: That of the value; checked.

    Raises:
        ArgumentError: no initial value, synchronization NONE, ON_READ and trainable, another shape than the value's,
            or an argument of TensorFlow's graphs.

    >>> from stratagem import Variable, VariableAggregation
    >>> total = Variable(0.0, aggregation=VariableAggregation.SUM)
    >>> float(total.assign_add(2.0))
    2.0
    """
    if initial_value is None:
        raise ArgumentError("Variable was given no initial value", fix="Variable(initial_value=...)")
    if synchronization is VariableSynchronization.NONE:
        raise ArgumentError(
            "synchronization=NONE has no meaning under a strategy", fix="leave it out, or use ON_WRITE or ON_READ"
        )
    on_read = synchronization is VariableSynchronization.ON_READ
    if on_read and trainable:
        raise ArgumentError(
            "trainable=True was given with synchronization=ON_READ, but gradients need copies that are equal",
            fix="trainable=False, or leave synchronization out",
        )
    of_graphs = {"caching_device": caching_device, "variable_def": variable_def, "import_scope": import_scope}
    for argument, given in of_graphs.items():
        if given is not None:
            raise ArgumentError(f"Variable was given {argument}, which only graphs have", fix="leave it out")
    del validate_shape
    value = initial_value() if callable(initial_value) else initial_value
    value: Any = keras.ops.convert_to_tensor(
        value, dtype=None if dtype is None else keras.backend.standardize_dtype(dtype)
    )
    if shape is not None and tuple(shape) != tuple(value.shape):
        raise ArgumentError(
            f"Variable was given shape={tuple(shape)} and a value of shape {tuple(value.shape)}", fix="leave shape out"
        )
    variable = DistributedVariable(
        _of_replica_0(value),
        trainable=not on_read if trainable is None else trainable,
        name=name,
        aggregation=_KERAS_NAMES[aggregation],
        synchronization="on_read" if on_read else "on_write",
    )
    variable.constraint = constraint
    return variable


@contextlib.contextmanager
def read_together(model: Any) -> Iterator[None]:
    """While one process saves a model: its variables that are brought together give what all read when this began."""
    found = read_on_demand(model)
    before = [variable.held_value for variable in found]
    hold(found)
    try:
        yield
    finally:
        for variable, value in zip(found, before, strict=True):
            variable.held_value = value


def read_on_demand(model: Any) -> list[DistributedVariable]:
    """The model's variables that are brought together when they are read, by all processes at the same time."""
    return [v for v in model.variables if isinstance(v, DistributedVariable) and v.synchronization == "on_read"]


def hold(variables: Sequence[DistributedVariable]) -> None:
    """Read them now; one process alone gets these values until they are let go."""
    for variable in variables:
        if variable.held_value is None:
            variable.held_value = variable.own_value if variable.aggregation == "none" else variable.value


def let_go(variables: Sequence[DistributedVariable]) -> None:
    """Bring them together anew when they are read."""
    for variable in variables:
        variable.held_value = None


def init_variable(original: Callable[..., None], variable: Any, *args: Any, **kwargs: Any) -> None:
    """Stands in for the `__init__` of Keras's variables.

    One that a program itself makes in a scope, with an aggregation or to be brought together when it is read, becomes
    what `Variable` would have made. Those of layers, optimizers and metrics stay Keras's: their owners see to them.
    """
    _attachment.init_variable(original, variable, *args, **kwargs)
    asks = variable.aggregation != "none" or variable.synchronization == "on_read"
    if asks and type(variable) is keras.Variable and not current_path() and contexts.current() is not None:
        variable.__class__ = DistributedVariable


def _of_replica_0(value: Any) -> Any:
    context = contexts.current()
    if context is None or not context.is_cross_replica or context.strategy.num_replicas_in_sync == 1:
        return value
    engine = context.strategy.extended.engine
    return engine.broadcast([[value]] * len(engine.local_replica_ids))[0][0]
