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
_UNCHANGING = (types.ModuleType, types.BuiltinFunctionType, type)  # no program gives such a name another meaning


class Identity:
    """What a function's behaviour hangs on, as a key: its code, and the objects that it holds or knows by global names.

    Args:
        fn: The function.
        owners: Other objects whose identity counts.

    Attributes:
        key: Equal for functions that do the same.
    """

    def __init__(self, fn: Callable[..., Any], *owners: object) -> None:
        self._held: list[Any] = []
        self._entered: set[int] = set()
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
        code, names = self._same(fn.__code__), self._globals(fn, depth)
        if fn.__closure__ is None and fn.__defaults__ is None and fn.__kwdefaults__ is None:
            return code, id(fn.__globals__), *names
        held = [self._of(_contents(cell), depth - 1) for cell in fn.__closure__ or ()]
        defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        return code, id(fn.__globals__), *names, *held, *map(self._same, defaults)

    def _globals(self, fn: types.FunctionType, depth: int) -> list[Any]:
        # `for model in models: strategy.run(lambda x: model(x))` at the level of a module: one code, several meanings.
        if id(fn.__code__) in self._entered:
            return []
        self._entered.add(id(fn.__code__))
        known = fn.__globals__
        found = [known[name] for name in _names(fn.__code__) if name in known]
        return [
            self._of(one, depth - 1) if isinstance(one, types.FunctionType) else self._same(one)
            for one in found
            if not isinstance(one, _UNCHANGING)
            and (not isinstance(one, types.FunctionType) or one.__globals__ is known)
        ]

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


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names in a function's code, and in that of the functions that it makes, that may be global ones."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not filled yet
