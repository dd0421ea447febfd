# SPDX-License-Identifier: Apache-2.0
"""How functions of ours stand in for functions of Keras, and how Keras gets its own back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hook:
    """One function of Keras that a function of ours stands in for.

    Attributes:
        owner, name: Where Keras looks the function up.
        function: Ours; its first argument is Keras's.
        reason: Why a public way does not do.
    """

    owner: Any
    name: str
    function: Callable[..., Any]
    reason: str


class Hooks:
    """A table of hooks, in place or not.

    Args:
        table: One row per function of Keras.
    """

    def __init__(self, table: Sequence[Hook]) -> None:
        self._table = tuple(table)
        self._originals: list[tuple[Hook, Any]] = []

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def installed(self) -> bool:
        """Whether they are in place."""
        return bool(self._originals)

    def install(self) -> None:
        """Put every hook in place. Idempotent."""
        if self._originals:
            return
        for hook in self._table:
            original = getattr(hook.owner, hook.name)
            self._originals.append((hook, original))
            setattr(hook.owner, hook.name, _standing_in(hook.function, original))

    def uninstall(self) -> None:
        """Give Keras its functions back; for tests."""
        while self._originals:
            hook, original = self._originals.pop()
            setattr(hook.owner, hook.name, original)


def _standing_in(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    # Keras reads the arguments of a layer's __init__ without looking behind wrappers.
    hooked.__signature__ = inspect.signature(original)  # pyright: ignore[reportAttributeAccessIssue]
    return hooked
