# SPDX-License-Identifier: Apache-2.0
"""When two functions are one: a lambda made anew in each turn of a loop is not to be compiled in each turn."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Identity", "unwrapped"]

_DEPTH = 4  # of functions held by functions


class Identity:
    """What a function's behaviour hangs on, as a key: its code and the objects that it holds.

    Args:
        fn: The function.
        owners: Other objects whose identity counts.

    Attributes:
        key: Equal for functions that do the same.
    """

    def __init__(self, fn: Callable[..., Any], *owners: object) -> None:
        self._held: list[Any] = []
        self.key = (self._of(fn, _DEPTH), *(self._same(owner) for owner in owners))

    def hold(self, forget: Callable[[], object]) -> list[Any]:
        """Call `forget` when an object in the key is gone; what can't be watched is returned, to be kept alive."""
        kept: list[Any] = []
        for held in self._held:
            try:
                weakref.finalize(held, forget).atexit = False
            except TypeError:
                kept.append(held)
        return kept

    def _of(self, fn: Any, depth: int) -> Any:
        if isinstance(fn, types.MethodType):
            return self._of(fn.__func__, depth), self._same(fn.__self__)
        if not isinstance(fn, types.FunctionType) or depth == 0:
            return self._same(fn)
        if fn.__closure__ is None and fn.__defaults__ is None and fn.__kwdefaults__ is None:
            return self._same(fn.__code__), id(fn.__globals__)
        held = [self._of(_contents(cell), depth - 1) for cell in fn.__closure__ or ()]
        defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        return self._same(fn.__code__), id(fn.__globals__), *held, *map(self._same, defaults)

    def _same(self, held: Any) -> Any:
        if held is None or type(held) in (bool, int, float, str):
            return type(held), held
        self._held.append(held)
        return id(held)


def unwrapped(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A `functools.partial` as the function inside and all of its arguments."""
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not filled yet
