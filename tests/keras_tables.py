# SPDX-License-Identifier: Apache-2.0
"""What tests of both engines ask of the tables of `keras_fit`: of hooks, and of names inside Keras."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from stratagem.keras_fit._hook import Hook, Hooks


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
