# SPDX-License-Identifier: Apache-2.0
"""`@stratagem.function`: a function in the form in which the engine runs it fastest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from stratagem.engines import select
from stratagem.errors import ArgumentTypeError

__all__ = ["function"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def function(func: F) -> F: ...


@overload
def function(
    *, input_signature: object = None, jit_compile: bool | None = None, reduce_retracing: bool = False
) -> Callable[[F], F]: ...


def function(
    func: Any = None,
    *,
    input_signature: object = None,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
) -> Any:
    """Compile a function that reads and writes Keras variables, and may call `strategy.run` and `strategy.reduce`.

    The place of `tf.function` in a training loop. With JAX the function is traced once for arguments of one kind and
    compiled as a whole, so its Python code runs at the first call only. With PyTorch it runs as it is, or with
    `jit_compile=True` through `torch.compile`. Inside a function given to `strategy.run` it changes nothing.

    Args:
        func: The function; without it, a decorator is returned.
        input_signature: Accepted as in `tf.function` and not needed: JAX compiles for the shapes that come.
        jit_compile: True or False as in `tf.function`; None leaves it to the engine: JAX compiles, PyTorch does not.
        reduce_retracing: Accepted as in `tf.function`; JAX compiles for exact shapes.

    Raises:
        ArgumentTypeError: `func` is no function.
        TracingError: when called with JAX: the function can't be traced.

    >>> from stratagem.testing.fake_engine import FakeEngine
    >>> @function
    ... def double(x):
    ...     return 2 * x
    >>> with select.use(FakeEngine()):
    ...     double(21)
    42
    """
    del input_signature, reduce_retracing
    if func is None:
        return lambda given: function(given) if jit_compile is None else _compiled(given, jit_compile)
    return _compiled(func, jit_compile)


def _compiled(func: Any, jit_compile: bool | None) -> Any:
    if not callable(func):
        raise ArgumentTypeError(f"function was given {func!r}, not a function", fix="put @function above a function")
    # One for each engine: a test may use several, and the engine is not chosen before the first call.
    made: dict[int, Callable[..., Any]] = {}

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        engine = select.engine()
        if id(engine) not in made:
            made[id(engine)] = engine.compiled(func, jit_compile)
        return made[id(engine)](*args, **kwargs)

    return call
