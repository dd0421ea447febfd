# SPDX-License-Identifier: Apache-2.0
"""How `scope()` meets Keras: the only place that touches Keras's internals.

`install()` puts hooks into Keras that do nothing until a model made under a strategy runs.
"""

from __future__ import annotations

import importlib

from stratagem.engines import select

__all__ = ["install"]

_HOOKS = {"torch": "stratagem.keras_fit._torch._hooks"}


def install() -> None:
    """Put the hooks into Keras. Idempotent; an engine that Keras has no part in (tests have one) needs none."""
    module = _HOOKS.get(select.engine().name)
    if module is not None:
        importlib.import_module(module).install()
