# SPDX-License-Identifier: Apache-2.0
"""What tests of both engines ask of the tables of `keras_fit`: of hooks, and of names inside Keras."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras

from stratagem.keras_fit._hook import Hook, Hooks


def draw(name: str, *parameters: float) -> None:
    """Draw two numbers by one of Keras's functions."""
    getattr(keras.random, name)((2,), *parameters, seed=keras.random.SeedGenerator(1))


# By the name of its hook, a use of each function of Keras's that draws numbers of a shape.
DRAWS: dict[str, Callable[[], None]] = {
    "random.uniform": partial(draw, "uniform"),
    "random.normal": partial(draw, "normal"),
    "random.randint": partial(draw, "randint", 0, 9),
    "random.truncated_normal": partial(draw, "truncated_normal"),
    "random.gamma": partial(draw, "gamma", 1.0),
    "random.beta": partial(draw, "beta", 1.0, 1.0),
    "random.binomial": partial(draw, "binomial", 3.0, 0.5),
}


def name_of(hook: Hook) -> str:
    """Where a hook stands, in short."""
    return f"{hook.owner.__name__.rpartition('.')[2]}.{hook.name}"


def calls_while(hook: Hook, use: Callable[[], None]) -> list[Any]:
    """The arguments with which the hook is called by `use`, with no other in place."""
    calls: list[Any] = []

    def spy(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return hook.function(original, *args, **kwargs)

    alone = Hooks((Hook(hook.owner, hook.name, spy, hook.reason),))
    alone.install()
    try:
        use()
    finally:
        alone.uninstall()
    return calls


def in_place(hooks: Mapping[str, Hook]) -> dict[str, Any]:
    """What stands now where each hook is to stand."""
    return {name: inspect.getattr_static(hook.owner, hook.name) for name, hook in hooks.items()}


class Checks(dict[tuple[str, str], Callable[[], None]]):
    """The check of each row of a table of names inside Keras."""

    def of(self, owner: str, name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """Enter a check for a row of the table."""

        def enter(function: Callable[[], None]) -> Callable[[], None]:
            self[owner, name] = function
            return function

        return enter
