# SPDX-License-Identifier: Apache-2.0
"""Modules of Flax NNX among the arguments of `strategy.run`: their variables go into the trace and come out of it.

As with `nnx.jit`, only modules that are arguments can be changed: those that a function knows in another way belong to
no trace, and are refused. Flax is never imported here; where the program has not, there is nothing to do.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stratagem.engines.jax import _tracing
from stratagem.engines.jax._mesh import AXIS, Replicas
from stratagem.errors import ArgumentError, ArgumentTypeError, TracingError

__all__ = ["FromChief", "ModuleArguments", "ModuleTrace", "has_modules", "refuse_captured"]

FromChief = Callable[[Sequence[Any]], Sequence[Any]]

_DEPTH = 4  # of functions held by functions


def has_modules(args: Any) -> bool:
    """Whether a module, optimizer, metric or other object of Flax NNX is among the arguments."""
    return _nnx() is not None and any(map(_is_node, jax.tree.leaves(args, is_leaf=_is_of_flax)))


@dataclass(frozen=True)
class _Slot:
    """Where a module stood among the arguments."""

    number: int


@functools.cache
def _slot(number: int) -> _Slot:
    return _Slot(number)  # one object for each number, as a compiled function is found by the identity of its arguments


@dataclass(frozen=True)
class Kind:
    """What a function is compiled for: everything in modules but their arrays.

    Attributes:
        graph: The modules' structure and attributes.
        tree: How their arrays lie in the modules' state.
        roles: What is done with each array.
        names: What each is called in errors.
    """

    graph: Any
    tree: Any
    roles: tuple[str, ...]
    names: tuple[str, ...]


# What becomes of an array that replicas write.
_EQUAL = "equal"  # parameters and optimizer states: as each replica computed them, which is the same on all
_KEY = "key"  # of random numbers: each replica has its own inside, and none changes it
_SUM = "sum"  # states of metrics, as if one device had seen all rows
_OTHER = "other"  # the mean of floating-point numbers, such as running statistics; integers advance equally

_MAX_KINDS = 256
_kinds: dict[tuple[Any, Any], Kind] = {}


class ModuleArguments:
    """The modules among the arguments of one call.

    Args:
        args: The arguments, positional and by keyword.
        replicas: On whose devices their arrays are to lie.
        from_chief: Makes arrays of replica 0's process those of all processes.

    Attributes:
        rest: `args` without the modules.
        kind: What the function is compiled for.
        arrays: The modules' arrays.

    Raises:
        ArgumentTypeError: a metric whose states are no sums.
    """

    def __init__(self, args: Any, replicas: Replicas, from_chief: FromChief | None) -> None:
        nnx: Any = _nnx()
        leaves, tree = jax.tree.flatten(args, is_leaf=_is_of_flax)
        self._nodes: list[Any] = []
        for number, leaf in enumerate(leaves):
            if _is_node(leaf):
                leaves[number] = _slot(len(self._nodes))
                self._nodes.append(leaf)
        self.rest = jax.tree.unflatten(tree, leaves)
        graph, state = nnx.split(self._nodes)
        arrays, self._tree = jax.tree.flatten(state)
        self._replicas = replicas
        self.kind = _kind(graph, self._tree, state, self._nodes)
        self.arrays = self._placed(arrays, from_chief)

    def put(self, arrays: Sequence[Any], *, check: bool) -> None:
        """Write the arrays that a call left.

        Args:
            arrays: As many as there were.
            check: Look whether those that should be equal on all replicas are.

        Raises:
            ArgumentError: they are not.
        """
        nnx: Any = _nnx()
        nnx.update(self._nodes, jax.tree.unflatten(self._tree, list(arrays)))
        if check and self._replicas.size > 1:
            for role, name, array in zip(self.kind.roles, self.kind.names, arrays, strict=True):
                if role == _EQUAL and not _is_equal_on_devices(array):
                    raise ArgumentError(
                        f"strategy.run has left {name} with another value on each replica, as its gradient was that of "
                        "the replica's own rows",
                        fix='before the update, gradients = get_replica_context().all_reduce("SUM", gradients); and '
                        "make the module anew",
                    )

    def _placed(self, arrays: list[Any], from_chief: FromChief | None) -> list[Any]:
        place = self._replicas.replicated
        away = [n for n, array in enumerate(arrays) if getattr(array, "sharding", None) != place]
        if not away:
            return arrays
        moving = [_strong(arrays[n]) for n in away]
        if from_chief is not None:
            moving = from_chief(moving)
        for n, array in zip(away, jax.device_put(list(moving), place), strict=True):
            arrays[n] = array
        return arrays


class ModuleTrace:
    """The modules while a function is traced for one replica.

    Args:
        kind: Theirs.
        arrays: Their arrays in the trace around the replicas.
        replicas: For whom it is traced.

    Attributes:
        after: The arrays in the trace around the replicas, after the function.
    """

    def __init__(self, kind: Kind, arrays: Sequence[Any], replicas: Replicas) -> None:
        self._kind, self._given, self._replicas = kind, list(arrays), replicas
        self.after: list[Any] = []
        self._begun: list[Any] = []
        self._nodes: list[Any] = []

    def arguments(self, rest: Any) -> Any:
        """The function's arguments, with modules that belong to the trace."""
        nnx: Any = _nnx()
        self._begun = list(map(self._start, self._kind.roles, self._given))
        self._nodes = nnx.merge(self._kind.graph, jax.tree.unflatten(self._kind.tree, self._begun))
        return jax.tree.map(lambda leaf: self._nodes[leaf.number] if isinstance(leaf, _Slot) else leaf, rest)

    def settled(self) -> list[Any]:
        """The arrays that stay, the same on all replicas.

        Raises:
            TracingError: the function has changed more than arrays.
        """
        nnx: Any = _nnx()
        graph, state = nnx.split(self._nodes)
        arrays, tree = jax.tree.flatten(state)
        if tree != self._kind.tree or graph != self._kind.graph:
            raise TracingError(
                "the function that strategy.run traces has made a variable or set an attribute of a module of Flax",
                fix="call model.train() and model.eval() outside of it, and take what nnx.sow stored out of the module "
                "with nnx.pop before the function returns",
            )
        return [
            self._settled(role, given, start, _strong(now))
            for role, given, start, now in zip(self._kind.roles, self._given, self._begun, arrays, strict=True)
        ]

    def _start(self, role: str, array: Any) -> Any:
        if self._replicas.size == 1:
            return array
        replica = _tracing.replica_id()
        if role == _KEY:
            # Replica 0 draws what one device draws.
            return jnp.where(replica == 0, array, jax.random.fold_in(array, replica))
        if role == _SUM:
            return jnp.where(replica == 0, array, jnp.zeros(array.shape, array.dtype))
        return array

    def _settled(self, role: str, given: Any, start: Any, now: Any) -> Any:
        if now is start or role == _KEY:
            return given
        if self._replicas.size == 1 or role == _EQUAL:
            return now
        if role == _SUM:
            return lax.psum(now, AXIS)
        return lax.pmean(now, AXIS) if jnp.issubdtype(now.dtype, jnp.floating) else now


def refuse_captured(fn: Callable[..., Any]) -> None:
    """Raise TracingError if a function that is about to be traced knows a module by another way than its arguments."""
    if _nnx() is None:
        return
    for name, held in _captured(fn, _DEPTH, set()):
        if has_modules(held):
            raise TracingError(
                f"the function that strategy.run traces knows {name!r}, a {type(held).__name__} of Flax, without being "
                "given it; what it read would stay as it is now, and what it wrote would be lost",
                fix=f"make it an argument, as for nnx.jit: strategy.run(step, args=({name}, ...))",
            )


def _captured(fn: Any, depth: int, entered: set[int]) -> Iterator[tuple[str, Any]]:
    itself = getattr(fn, "__self__", fn)
    if _is_node(itself):
        yield "model", itself
    if isinstance(fn, types.MethodType):
        attributes = getattr(fn.__self__, "__dict__", {})
        names = getattr(fn.__func__, "__code__", None)
        yield from ((name, attributes[name]) for name in getattr(names, "co_names", ()) if name in attributes)
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType) or id(fn.__code__) in entered or depth == 0:
        return
    entered.add(id(fn.__code__))
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    held = [(name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
    held += [(name, fn.__globals__[name]) for name in _globals(fn.__code__) if name in fn.__globals__]
    for name, value in held:
        if isinstance(value, (types.FunctionType, types.MethodType)):
            if getattr(value, "__globals__", fn.__globals__) is fn.__globals__:
                yield from _captured(value, depth - 1, entered)
        elif not isinstance(value, (type, types.ModuleType)):
            yield name, value


@functools.lru_cache(maxsize=256)
def _globals(code: types.CodeType) -> tuple[str, ...]:
    """The global names that a function, or one that it makes, reads."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _globals(constant)]
    own = [one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    return tuple(dict.fromkeys((*own, *inner)))


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _nnx() -> Any | None:
    return sys.modules.get("flax.nnx")


def _is_node(value: Any) -> bool:
    nnx: Any = _nnx()
    return isinstance(value, (nnx.Pytree, nnx.Variable))


def _is_of_flax(value: Any) -> bool:
    nnx: Any = _nnx()
    # A state that a program takes apart itself is a container of arrays like any other.
    return isinstance(value, nnx.State) or _is_node(value)


def _kind(graph: Any, tree: Any, state: Any, nodes: Sequence[Any]) -> Kind:
    """One object for equal ones, as a compiled function is found by the identity of its arguments."""
    kind = _kinds.get((graph, tree))
    if kind is None:
        if len(_kinds) >= _MAX_KINDS:
            _kinds.clear()
        kind = _kinds[graph, tree] = _new_kind(graph, tree, state, nodes)
    return kind


def _new_kind(graph: Any, tree: Any, state: Any, nodes: Sequence[Any]) -> Kind:
    nnx: Any = _nnx()
    roles: list[str] = []
    names: list[str] = []
    found, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda part: isinstance(part, nnx.Variable))
    for (first, *path), variable in found:
        name = f"{type(nodes[first.key]).__name__}{jax.tree_util.keystr(tuple(path))}"
        for _ in jax.tree.leaves(variable):
            roles.append(_role(variable))
            names.append(name)
    if any(isinstance(node, nnx.metrics.Welford) for _, node in nnx.iter_graph(nodes)):
        raise ArgumentTypeError(
            "strategy.run was given nnx.metrics.Welford, a metric whose states of several replicas can't be added up",
            fix="update it outside of strategy.run, or use nnx.metrics.Average",
        )
    return Kind(graph, tree, tuple(roles), tuple(names))


def _role(variable: Any) -> str:
    nnx: Any = _nnx()
    if isinstance(variable, nnx.RngKey):
        return _KEY
    if isinstance(variable, nnx.metrics.MetricState):
        return _SUM
    return _EQUAL if isinstance(variable, (nnx.Param, nnx.OptState)) else _OTHER


def _is_equal_on_devices(array: Any) -> bool:
    first, *others = (np.asarray(shard.data) for shard in array.addressable_shards)
    return not others or np.array_equal(first, others[-1], equal_nan=np.issubdtype(first.dtype, np.inexact))


def _strong(value: Any) -> Any:
    return jnp.asarray(value, value.dtype) if getattr(value, "weak_type", False) else value
