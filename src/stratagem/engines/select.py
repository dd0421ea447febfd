# SPDX-License-Identifier: Apache-2.0
"""Which engine this process uses: the one for Keras's backend."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

from stratagem._core import env
from stratagem.engines.base import Engine
from stratagem.errors import BackendError

__all__ = ["engine", "use"]

_ENGINES = {
    "torch": ("stratagem.engines.torch", "TorchEngine"),
    "jax": ("stratagem.engines.jax", "JaxEngine"),
}

_current: Engine | None = None


def engine() -> Engine:
    """The engine of this process, made at the first call.

    Raises:
        BackendError: Keras runs, or would run, on a backend that no engine drives.
    """
    global _current
    if _current is None:
        module, name = _ENGINES[_backend()]
        _current = getattr(importlib.import_module(module), name)()
    assert _current is not None
    return _current


@contextlib.contextmanager
def use(replacement: Engine) -> Iterator[Engine]:
    """Let `engine()` answer `replacement` inside the block; for tests."""
    global _current
    previous, _current = _current, replacement
    try:
        yield replacement
    finally:
        _current = previous


def _backend() -> str:
    asked = env.keras_backend()
    loaded = "keras" in sys.modules
    # KERAS_BACKEND decides before keras is imported, and nothing decides afterwards.
    backend: str = asked if asked and not loaded else importlib.import_module("keras").backend.backend()
    if backend in _ENGINES:
        if asked and asked != backend:
            raise BackendError(
                f"keras was imported with the backend {backend!r}, but KERAS_BACKEND is now {asked!r}",
                fix=f"set KERAS_BACKEND={asked} before the first `import keras`",
            )
        return backend
    when = "was imported with" if loaded else "would use"
    raise BackendError(
        f"keras {when} the backend {backend!r}: Stratagem has no engine for it, it drives "
        f"{' and '.join(sorted(_ENGINES))}",
        fix="set KERAS_BACKEND=torch or KERAS_BACKEND=jax before the first `import keras`, "
        "or start with: stratagem run script.py",
    )
