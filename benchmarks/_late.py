# SPDX-License-Identifier: Apache-2.0
"""Names for what other processes call, so that naming it here loads no framework here."""

from __future__ import annotations

import importlib
from typing import Any


def call(target: str, *args: Any) -> Any:
    """Call "module:function" with `args`."""
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)(*args)
