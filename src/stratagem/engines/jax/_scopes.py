# SPDX-License-Identifier: Apache-2.0
"""What stands between a traced function and Keras's variables: who reads and writes which, and with what value."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import keras

from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._variables import assign_own, own_value

__all__ = ["Discovery", "Inner", "Missed", "Tracked", "innermost", "mirrored_writes"]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Tracked] = []
        self.mirrored = 0
        self.asking = False


_THREAD = _Thread()


class Missed(Exception):
    """A function touches a variable that it didn't touch when its variables were looked for."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable.path)
        self.path: str = variable.path


@contextmanager
def mirrored_writes(mirrored: bool = True) -> Iterator[None]:
    """Variables written inside get the same value on all replicas, so nothing needs to be made equal afterwards."""
    _THREAD.mirrored += mirrored
    try:
        yield
    finally:
        _THREAD.mirrored -= mirrored


def innermost() -> Tracked | None:
    """The scope of the innermost function that is being traced in this thread, or None."""
    return _THREAD.scopes[-1] if _THREAD.scopes else None


class Tracked(keras.StatelessScope):
    """A stateless scope that notes which variables are read and written.

    Attributes:
        read, written: The variables, by their identity, in the order of the first time.
        diverging: The identities of those written at least once with a value of the replica's own.
        replicas: Those that a function inside was run on, or None; the variables have to lie on their devices.
    """

    def __init__(self) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.read: dict[int, Any] = {}
        self.written: dict[int, Any] = {}
        self.diverging: set[int] = set()
        self.replicas: Replicas | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        _THREAD.scopes.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _THREAD.scopes.remove(self)
        super().__exit__(*error)

    def get_current_value(self, variable: Any) -> Any:
        """The value that code inside sees."""
        if _THREAD.asking:
            return None
        value = self.state_mapping.get(id(variable))
        if value is not None:
            return value
        self.read[id(variable)] = variable
        return self.first_value(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note a new value."""
        variable, _ = update
        self.written.setdefault(id(variable), variable)
        if not _THREAD.mirrored:
            self.diverging.add(id(variable))
        super().add_update(update)

    def first_value(self, variable: Any) -> Any:
        """The value of a variable that was not written inside."""
        # Without an answer from the innermost scope, Keras goes to the variable itself.
        _THREAD.asking = True
        try:
            return own_value(variable)
        finally:
            _THREAD.asking = False

    def note_replicas(self, replicas: Replicas) -> None:
        """Code inside runs a function on `replicas`."""
        self.replicas = replicas

    def will_write(self, variable: Any) -> bool:
        """Whether code inside may write the variable, as far as is known."""
        del variable
        return True

    def hand_over(self, values: Sequence[Any]) -> None:
        """Write `values`, of the variables in `written`, in the scope around this one, or in the variables."""
        for (key, variable), value in zip(self.written.items(), values, strict=True):
            with mirrored_writes(key not in self.diverging):
                assign_own(variable, value)


class Discovery(Tracked):
    """Finds out which variables a function touches; those that it makes get their initial values on leaving."""

    def __init__(self) -> None:
        super().__init__()
        self.initialize_variables = True


class Inner(Tracked):
    """Inside another scope, or outside of all: starts from the values that hold there.

    Args:
        values: Other values of some variables, as (variable, value).
    """

    def __init__(self, values: Sequence[tuple[Any, Any]] = ()) -> None:
        super().__init__()
        self._around = innermost()
        self._given = {id(variable): value for variable, value in values}

    def first_value(self, variable: Any) -> Any:
        """The value around this scope."""
        if id(variable) in self._given:
            return self._given[id(variable)]
        if self._around is None:
            return super().first_value(variable)
        return self._around.get_current_value(variable)

    def will_write(self, variable: Any) -> bool:
        """As the scope around this one knows."""
        return self._around is None or self._around.will_write(variable)
