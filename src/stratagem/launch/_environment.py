# SPDX-License-Identifier: Apache-2.0
"""What launch writes into this process's own environment."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Generator, Mapping

from stratagem._core import env
from stratagem.errors import BackendError

BACKENDS = ("torch", "jax")


def set_cpu_devices(num_devices: int) -> None:
    """Let `env.cpu_devices()` answer `num_devices`, here and in the processes that this one starts."""
    os.environ[env.CPU_DEVICES] = str(num_devices)


def set_backend(backend: str) -> None:
    """Let keras use `backend`, if it is imported after this, here and in the processes that this one starts."""
    os.environ[env.KERAS_BACKEND] = backend


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables, such as which GPUs a framework sees, here and in the processes that this one starts."""
    os.environ.update(variables)


@contextlib.contextmanager
def variable_unless_set(name: str, value: str) -> Generator[None]:
    """Let the variable `name` be `value` inside the block, for a library that reads it there; a user's own stays."""
    if os.environ.get(name):
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def choose_backend(environ: Mapping[str, str], *, loaded: str | None = None) -> str:
    """The backend that a job's processes use: what KERAS_BACKEND names, else `loaded`, else the first installed.

    Raises:
        BackendError: KERAS_BACKEND names a backend that Stratagem does not drive, or none is installed.
    """
    named = environ.get(env.KERAS_BACKEND) or loaded
    if named:
        if named not in BACKENDS:
            raise BackendError(
                f"the Keras backend is {named!r}; Stratagem drives {' and '.join(BACKENDS)}",
                fix=f"set {env.KERAS_BACKEND}=torch",
            )
        return named
    # Looked for, not imported: the launcher stays small and starts fast.
    installed = [backend for backend in BACKENDS if importlib.util.find_spec(backend)]
    if not installed:
        raise BackendError("neither torch nor jax is installed", fix="pip install 'stratagem[torch]'")
    return installed[0]


def loaded_backend() -> str | None:
    """The backend of the keras that this process has imported, or None if it has not."""
    keras = sys.modules.get("keras")
    return keras.config.backend() if keras else None
