# SPDX-License-Identifier: Apache-2.0
"""How `scope()` meets Keras: the only place that touches Keras's internals.

`install()` puts hooks into Keras that do nothing until a model made under a strategy runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._core.contexts import CurrentStrategy
from stratagem.engines import select
from stratagem.engines.compiled_step import CompiledStep
from stratagem.errors import BackendError
from stratagem.keras_fit import _attachment

__all__ = ["as_arrays", "compile_for", "install", "strategy_of_variable"]

_HOOKS = {"torch": "stratagem.keras_fit._torch._hooks", "jax": "stratagem.keras_fit._jax._hooks"}
_COMPILERS = {"jax": "stratagem.keras_fit._jax._ahead_of_time"}


def as_arrays(gradients: Sequence[Any]) -> list[np.ndarray | None]:
    """Tensors as arrays of float64; None stays None."""
    from keras import ops

    return [None if one is None else np.asarray(ops.convert_to_numpy(one), "float64") for one in gradients]


def compile_for(topology: str, model: Any, batch: Any) -> CompiledStep:
    """Compile a model's training step for devices that need not be there.

    Args:
        topology: Those devices, such as "v5e:2x4".
        model: Compiled.
        batch: A global batch, or its shapes and dtypes.

    Raises:
        BackendError: the engine compiles nothing ahead of time.
    """
    name = select.engine().name
    module = _COMPILERS.get(name)
    if module is None:
        raise BackendError(
            f"the {name} engine compiles nothing ahead of time, and TPUs need JAX",
            fix="run the script with KERAS_BACKEND=jax, or use: stratagem compile --topology v5e:2x4 script.py",
        )
    return importlib.import_module(module).compile_for(topology, model, batch)


def strategy_of_variable(variable: Any) -> CurrentStrategy | None:
    """The strategy in whose scope a Keras variable was made, or None."""
    return _attachment.strategy_of_variable(variable)


def install() -> None:
    """Put the hooks into Keras. Idempotent; an engine that Keras has no part in (tests have one) needs none."""
    module = _HOOKS.get(select.engine().name)
    if module is not None:
        importlib.import_module(module).install()
