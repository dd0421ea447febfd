# SPDX-License-Identifier: Apache-2.0
"""Which strategy is current, and whether we are inside a replica: one stack per thread.

The layers below `strategies` see a strategy only through here:

    context = contexts.current()
    if context is not None and context.is_cross_replica: ...
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stratagem._core.enums import ReduceOp
from stratagem._core.options import RunOptions
from stratagem.errors import ContextError, MixedStrategyError

__all__ = [
    "Context",
    "CurrentStrategy",
    "current",
    "entered",
    "outside_all",
    "pop",
    "push",
    "require_cross_replica",
    "require_no_scope",
    "set_base",
]


class CurrentStrategy(Protocol):
    """What every layer may ask of the current strategy; `strategies.Strategy` documents it."""

    @property
    def num_replicas_in_sync(self) -> int: ...

    @property
    def extended(self) -> Any: ...

    def scope(self) -> contextlib.AbstractContextManager[Any]: ...

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any: ...

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: int | Sequence[int] | None) -> Any: ...

    def gather(self, value: Any, axis: int) -> Any: ...

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Context:
    """One entry of the stack.

    Attributes:
        strategy: The current strategy.
        replica_context: What `get_replica_context()` returns; None in cross-replica context.
        updates_copies: Whether variables stand for the copy of one replica, as in `extended.update`.
        rows: Of the global batch: where the replica's begin, how many it has, and all have; None if nobody knows.
    """

    strategy: CurrentStrategy
    replica_context: Any = None
    updates_copies: bool = False
    rows: tuple[int, int, int] | None = None

    @property
    def is_cross_replica(self) -> bool:
        """Whether this is the code around the replicas, not the code of one of them."""
        return self.replica_context is None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.base: Context | None = None  # of experimental_set_strategy
        self.entries: list[Context] = []


_stack = _Stack()


def current() -> Context | None:
    """The innermost context of this thread, or None outside every strategy."""
    return _stack.entries[-1] if _stack.entries else _stack.base


def push(context: Context) -> None:
    """Make `context` the current one until `pop`."""
    _stack.entries.append(context)


def pop(strategy: CurrentStrategy) -> None:
    """Leave the innermost context, which must be a scope of `strategy`.

    Raises:
        ContextError: it is not; the stack stays as it is.
    """
    top = _stack.entries[-1] if _stack.entries else None
    if top is None or top.strategy is not strategy or not top.is_cross_replica:
        raise ContextError(
            f"a scope of {strategy!r} was left that is not the innermost one open in this thread",
            fix="use `with strategy.scope():`, which leaves scopes in the right order",
        )
    _stack.entries.pop()


class entered:
    """Make `context` the current one inside the block; a class, as a generator costs a microsecond in every run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._depth = 0

    def __enter__(self) -> None:
        self._depth = len(_stack.entries)
        _stack.entries.append(self._context)

    def __exit__(self, *_failure: object) -> None:
        del _stack.entries[self._depth :]


@contextlib.contextmanager
def outside_all() -> Generator[None]:
    """Leave every scope and replica for the length of the block."""
    entries, base = _stack.entries, _stack.base
    _stack.entries, _stack.base = [], None
    try:
        yield
    finally:
        _stack.entries, _stack.base = entries, base


def set_base(context: Context | None) -> None:
    """Make `context` the one outside every scope of this thread, or with None end that."""
    _stack.base = context


def require_no_scope() -> None:
    """Check that this thread is in no scope, whatever `set_base` was given.

    Raises:
        ContextError: a scope is open.
    """
    if _stack.entries:
        raise ContextError(
            f"experimental_set_strategy() was called inside the scope of {_stack.entries[-1].strategy!r}",
            fix="call it outside every `with strategy.scope():` and outside strategy.run()",
        )


def require_cross_replica(strategy: CurrentStrategy, call: str, fix: str) -> None:
    """Check that `strategy` may act for all of its replicas now: outside every strategy, or in its own scope.

    Args:
        strategy: The strategy whose method was called.
        call: That method, for the error text.
        fix: What to do instead inside a replica function.

    Raises:
        MixedStrategyError: another strategy is current.
        ContextError: the call came from inside a replica function.
    """
    context = current()
    if context is None:
        return
    if context.strategy is not strategy:
        raise MixedStrategyError(
            f"{call} of {strategy!r} was called while another strategy is current: {context.strategy!r}",
            fix="make one strategy at the start of the program and use it throughout",
        )
    if not context.is_cross_replica:
        raise ContextError(f"{call} was called inside a function that strategy.run() runs on a replica", fix=fix)
