# SPDX-License-Identifier: Apache-2.0
"""The functions that tell which strategy is current."""

from __future__ import annotations

from typing import cast

from stratagem._core import contexts
from stratagem.errors import ArgumentTypeError
from stratagem.strategies._default import DEFAULT
from stratagem.strategies._replica_context import ReplicaContext
from stratagem.strategies._strategy import Strategy

__all__ = [
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


def get_strategy() -> Strategy:
    """The current strategy; the default one outside every scope: `tf.distribute.get_strategy`.

    >>> get_strategy().num_replicas_in_sync
    1
    """
    context = contexts.current()
    return DEFAULT if context is None else cast(Strategy, context.strategy)


def has_strategy() -> bool:
    """Whether another strategy than the default one is current: `tf.distribute.has_strategy`.

    >>> has_strategy()
    False
    """
    return get_strategy() is not DEFAULT


def get_replica_context() -> ReplicaContext | None:
    """The context of the replica whose code this is: `tf.distribute.get_replica_context`.

    Returns:
        None in cross-replica context, so in a scope outside `run`. Outside every strategy, the context of the
        default strategy's only replica.

    >>> get_replica_context().replica_id_in_sync_group
    0
    """
    context = contexts.current()
    return DEFAULT.extended.default_replica_context if context is None else context.replica_context


def in_cross_replica_context() -> bool:
    """Whether the code acts for all replicas, so in a scope outside `run`: `tf.distribute.in_cross_replica_context`.

    >>> in_cross_replica_context()
    False
    """
    context = contexts.current()
    return context is not None and context.is_cross_replica


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Make `strategy` current from here on, for notebooks: `tf.distribute.experimental_set_strategy`.

    Args:
        strategy: The strategy, or None for the default one.

    Raises:
        ContextError: called inside a scope.

    >>> experimental_set_strategy(None)
    """
    if strategy is not None and not isinstance(strategy, Strategy):
        raise ArgumentTypeError(f"experimental_set_strategy was given {strategy!r}", fix="give it a strategy, or None")
    contexts.require_no_scope()
    if strategy is None or strategy is DEFAULT:
        contexts.set_base(None)
        return
    strategy.extended.connect()
    contexts.set_base(contexts.Context(strategy))
