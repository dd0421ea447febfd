# SPDX-License-Identifier: Apache-2.0
"""Which strategy a model belongs to."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratagem._core import contexts, env
from stratagem.errors import ContextError, MixedStrategyError

if TYPE_CHECKING:
    from stratagem._core.contexts import CurrentStrategy

_LOG = logging.getLogger("stratagem")

_warned: weakref.WeakSet[Any] = weakref.WeakSet()
_STRATEGY = "_stratagem_strategy"  # of a variable: they have no hash

_strategies: weakref.WeakKeyDictionary[Any, CurrentStrategy] = weakref.WeakKeyDictionary()


def on_created(model: Any) -> None:
    """A model made in a scope belongs to its strategy."""
    context = contexts.current()
    if context is not None and context.is_cross_replica:
        _strategies[model] = context.strategy


def warn_if_alone(model: Any, method: str) -> None:
    """Say once that each replica of a job trains a model of its own, if this model was made outside every scope."""
    job = env.job()
    if job is None or job.world_size == 1 or model in _warned:
        return
    _warned.add(model)
    if job.rank == 0:
        _LOG.warning(
            "%s() of model %r: this job has %d replicas, but the model was made outside `with strategy.scope():`, so "
            "each replica runs it alone, on all rows, and writes the same files",
            method,
            model.name,
            job.world_size,
        )


def strategy_of(model: Any) -> CurrentStrategy | None:
    """The strategy that `model` was made under, or None."""
    return _strategies.get(model)


def check(model: Any, method: str) -> CurrentStrategy | None:
    """The strategy to run `model.method` under, or None for plain Keras.

    A model without variables that is compiled or run in a scope joins that scope's strategy.

    Raises:
        MixedStrategyError: the model was made under another strategy than the current one.
        ContextError: the model's variables were made outside the current scope.
    """
    mine = strategy_of(model)
    context = contexts.current()
    if context is None or context.strategy is mine:
        return mine
    if mine is not None:
        raise MixedStrategyError(
            f"model {model.name!r} was made in the scope of {mine!r}, but {method}() was called in the scope of "
            f"another, {context.strategy!r}",
            fix="make, compile and train a model under one strategy",
        )
    if model.weights:
        raise ContextError(
            f"the variables of model {model.name!r} were made outside the scope of {context.strategy!r}, in which "
            f"{method}() was called",
            fix="make the model inside `with strategy.scope():`, as the optimizer and the metrics",
        )
    _strategies[model] = context.strategy
    return context.strategy


def joined(model: Any, method: str) -> CurrentStrategy | None:
    """`check`, with the job joined; without a strategy a warning where each replica would train a model of its own."""
    strategy = check(model, method)
    if strategy is None:
        warn_if_alone(model, method)
        return None
    strategy.extended.connect()
    return strategy


def init_trainer(original: Callable[..., None], model: Any) -> None:
    """Stands in for the `__init__` of Keras's trainer."""
    original(model)
    on_created(model)


def compile_model(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands in for `Model.compile`."""
    check(model, "compile")
    return original(model, *args, **kwargs)


def init_variable(original: Callable[..., None], variable: Any, *args: Any, **kwargs: Any) -> None:
    """Stands in for the `__init__` of Keras's variables: those made in a scope belong to its strategy."""
    original(variable, *args, **kwargs)
    context = contexts.current()
    if context is not None:
        setattr(variable, _STRATEGY, context.strategy)


def strategy_of_variable(variable: Any) -> CurrentStrategy | None:
    """The strategy in whose scope a variable was made, or None."""
    return getattr(variable, _STRATEGY, None)
