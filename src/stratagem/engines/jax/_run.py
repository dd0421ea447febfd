# SPDX-License-Identifier: Apache-2.0
"""`strategy.run`: a function traced once and run on all replicas, on each with its own part of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from stratagem._core import contexts, nest
from stratagem._core.values import DistributedValues, PerReplica, ReplicaVariable
from stratagem.engines.base import ReplicaEntry
from stratagem.engines.jax import _tracing
from stratagem.engines.jax._flax import FromChief, ModuleArguments, ModuleTrace, has_modules, refuse_captured
from stratagem.engines.jax._identity import unwrapped
from stratagem.engines.jax._mesh import AXIS, Replicas
from stratagem.engines.jax._results import Results
from stratagem.engines.jax._scopes import Inner, innermost, mirrored_writes
from stratagem.engines.jax._signature import AlreadyTraced
from stratagem.engines.jax._stacks import ArrayStack, stack_of
from stratagem.engines.jax._stateful import CompiledFunctions
from stratagem.engines.jax._untraceable import ReadInTraceError
from stratagem.errors import TracingError

__all__ = ["Runner"]

_CALL = "strategy.run"
_FUNCTION = "@stratagem.function"


class Runner:
    """Runs functions on replicas, and keeps what it compiled."""

    def __init__(self) -> None:
        self._runs = CompiledFunctions(_CALL)
        self._functions = CompiledFunctions(_FUNCTION)

    def run(
        self,
        replicas: Replicas,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inside: ReplicaEntry,
        from_chief: FromChief | None = None,
    ) -> Any:
        """`Engine.run_traced`; `from_chief` makes arrays of replica 0's process those of all processes."""
        fn, args, kwargs = unwrapped(fn, tuple(args), dict(kwargs))
        if has_modules((args, kwargs)):
            return self._run_with_modules(replicas, fn, (args, kwargs), inside, from_chief)

        def through(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            refuse_captured(fn)
            return _on_replicas(replicas, fn, args, kwargs, inside)

        if innermost() is None:
            try:
                return self._runs.run(fn, args, kwargs, replicas=replicas, through=through, owner=inside.owner)
            except AlreadyTraced:
                pass
        return through(fn, tuple(args), dict(kwargs))

    def _run_with_modules(
        self,
        replicas: Replicas,
        fn: Callable[..., Any],
        given: tuple[tuple[Any, ...], dict[str, Any]],
        inside: ReplicaEntry,
        from_chief: FromChief | None,
    ) -> Any:
        if innermost() is not None:
            raise TracingError(
                f"{_CALL} was given a module of Flax inside {_FUNCTION}, which would not see what becomes of it",
                fix=f"call {_CALL} outside of it; the step is compiled there too",
            )
        traced: list[bool] = []

        def through(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            kind, arrays, (args, kwargs) = args
            refuse_captured(fn)
            traced.append(True)
            modules = ModuleTrace(kind, arrays, replicas)
            return _on_replicas(replicas, fn, args, kwargs, inside, modules), modules.after

        modules = ModuleArguments(given, replicas, from_chief)
        packed = (modules.kind, modules.arrays, modules.rest)
        result, arrays = self._runs.run(fn, packed, {}, replicas=replicas, through=through, owner=inside.owner)
        modules.put(arrays, check=bool(traced))
        return result

    def compiled(self, replicas: Callable[[], Replicas], fn: Callable[..., Any]) -> Callable[..., Any]:
        """`Engine.compiled`; a function that reads data runs as it is, and what it gives to `run` is compiled."""
        reads_data = False

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal reads_data
            if has_modules((args, kwargs)):
                raise TracingError(
                    f"{_FUNCTION} was given a module of Flax, of which it would not see what becomes",
                    fix=f"give it to {_CALL}, which compiles the step, or compile with nnx.jit",
                )
            if innermost() is None and not reads_data:
                context = contexts.current()
                owner = None if context is None else context.strategy
                try:
                    return self._functions.run(fn, args, kwargs, replicas=replicas(), through=_plainly, owner=owner)
                except AlreadyTraced:
                    pass
                except ReadInTraceError:
                    reads_data = True
            return fn(*args, **kwargs)

        return call


def _plainly(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _on_replicas(
    replicas: Replicas,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inside: ReplicaEntry,
    modules: ModuleTrace | None = None,
) -> Any:
    """Part of a trace: `fn` on each replica, its results per replica, the variables written."""
    if (around := innermost()) is not None:
        around.note_replicas(replicas)
    leaves, tree = jax.tree.flatten((args, kwargs))
    own = {n: stack_of(leaf, replicas, _CALL).whole for n, leaf in enumerate(leaves) if _differs(replicas, leaf)}
    leaves = [_same(replicas, leaf) for leaf in leaves]
    # The batch is the first argument that replicas have parts of; their parts have equally many rows.
    rows = next((whole.shape[1] for whole in own.values() if whole.ndim > 1), None)
    scope = _ReplicaScope(replicas)
    traced: list[Results] = []

    def body(wholes: list[jax.Array]) -> tuple[list[jax.Array], tuple[list[jax.Array], list[jax.Array]]]:
        mine = list(leaves)
        for n, whole in zip(own, wholes, strict=True):
            mine[n] = whole[0]
        args, kwargs = jax.tree.unflatten(tree, mine)
        with _tracing.tracing_replica(replicas, rows), scope:
            if modules is not None:
                args, kwargs = modules.arguments((args, kwargs))
            with inside(_tracing.replica_id()):
                results = Results(fn(*args, **kwargs))
            traced.append(results)
            state = scope.settled(), [] if modules is None else modules.settled()
        arrays = [jnp.asarray(array) for array in results.arrays]
        return (arrays if replicas.size == 1 else [array[None] for array in arrays]), state

    per_replica = PartitionSpec(AXIS)
    whole = PartitionSpec() if replicas.size == 1 else per_replica
    wholes, (state, in_modules) = jax.shard_map(
        body, mesh=replicas.mesh, in_specs=(per_replica,), out_specs=(whole, PartitionSpec()), check_vma=False
    )(list(own.values()))
    scope.hand_over(state)
    if modules is not None:
        modules.after = in_modules
    return _joined(replicas, traced[0].without_arrays(), wholes)


def _differs(replicas: Replicas, leaf: Any) -> bool:
    return isinstance(leaf, DistributedValues) and replicas.size > 1


def _same(replicas: Replicas, leaf: Any) -> Any:
    return leaf.values[0] if isinstance(leaf, DistributedValues) and replicas.size == 1 else leaf


def _joined(replicas: Replicas, results: Results, wholes: Sequence[jax.Array]) -> Any:
    if replicas.size == 1:
        return results.around(wholes)
    ids = replicas.local_ids

    def join(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, ArrayStack):
            return PerReplica.of_stack(leaf, ids)
        if not jax.tree_util.all_leaves([leaf]):
            return jax.tree.map(join, leaf)
        return PerReplica([leaf] * len(ids), ids)

    return nest.map_structure(join, results.around([ArrayStack(whole, replicas) for whole in wholes]))


class _ReplicaScope(Inner):
    """What one replica's code sees of the variables, and what its writes make of them.

    A variable has one value after the run, whatever the replicas wrote:
    - the optimizer's writes, and those in cross-replica context, are equal on all replicas;
    - a variable with aggregation "sum" (a metric's state) counts on from its value on replica 0 and from zero on the
      others, and the sum stays: as if one device had seen all rows;
    - of "only_first_replica" replica 0's value stays;
    - integers (states of random generators, counters) advance equally on all replicas;
    - of other numbers (moving statistics) the mean stays.

    A `stratagem.Variable` has a value per replica, and has seen to its aggregation itself.
    """

    def __init__(self, replicas: Replicas) -> None:
        super().__init__()
        self._replicas = replicas

    def first_value(self, variable: Any) -> Any:
        value = super().first_value(variable)
        adds_up = variable.aggregation == "sum" and not isinstance(variable, ReplicaVariable)
        if self._replicas.size > 1 and adds_up and self.will_write(variable):
            return jnp.where(_tracing.replica_id() == 0, value, jnp.zeros(value.shape, value.dtype))
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        context = contexts.current()
        equal = context is not None and context.is_cross_replica
        if context is not None and context.updates_copies and update[0].aggregation != "sum":
            equal = False  # each replica's copy was written with its part of the arguments
        with mirrored_writes(equal):
            super().add_update(update)

    def settled(self) -> list[Any]:
        """The values that stay, of the variables in `written`."""
        return [self._settled(key, variable) for key, variable in self.written.items()]

    def _settled(self, key: int, variable: Any) -> Any:
        value = self.state_mapping[key]
        if self._replicas.size == 1 or key not in self.diverging or isinstance(variable, ReplicaVariable):
            return value
        if variable.aggregation == "sum":
            return lax.psum(value, AXIS)
        if variable.aggregation == "only_first_replica":
            return _tracing.broadcast([value], 0)[0]
        return lax.pmean(value, AXIS) if jnp.issubdtype(value.dtype, jnp.floating) else value
