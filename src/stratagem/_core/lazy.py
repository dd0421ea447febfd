# SPDX-License-Identifier: Apache-2.0
"""Public names that are imported when they are first asked for, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

__all__ = ["CallableModule", "attach"]


def attach(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module-level `__getattr__` and `__dir__` (PEP 562) of a package.

    Args:
        package: The package's `__name__`.
        names: For each public name the module that has it; a name is a module itself where that module's path
            ends in the name and the module lies directly below the package.
    """

    def get(name: str) -> Any:
        home = names.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(names)


class CallableModule(ModuleType):
    """A module that can be called: the call goes to the function that has the module's own name.

    `stratagem.launch` is both the function that notebooks call and the package that holds it.
    """

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        # inspect.signature and help() follow this.
        return getattr(self, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)
