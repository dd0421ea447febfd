# SPDX-License-Identifier: Apache-2.0
"""Importing does nothing, and fast."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

FRAMEWORKS = ("torch", "keras", "jax", "tensorflow")

# These load a framework: that is what they are for.
HEAVY = ("stratagem.engines.torch", "stratagem.engines.jax", "stratagem.keras_fit")

_LOOK = """
import json, logging, os, sys, threading
environment, handlers = dict(os.environ), list(logging.getLogger().handlers)
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
try:
    children = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    children = None
print(json.dumps({
    "modules": sorted({name.split(".")[0] for name in sys.modules}),
    "environment": dict(os.environ) == environment,
    "handlers": logging.getLogger().handlers == handlers,
    "threads": [thread.name for thread in threading.enumerate()],
    "children": children,
}))
"""


def test_importing_stratagem_does_nothing() -> None:
    seen = _look_after_importing("stratagem")
    _assert_nothing_happened(seen)
    assert "numpy" not in seen["modules"]


def test_importing_every_module_but_the_engines_does_nothing(modules: Any) -> None:
    names = [module.name for module in modules if not module.name.startswith(HEAVY)]
    _assert_nothing_happened(_look_after_importing(*(name for name in names if not name.endswith("__main__"))))


def test_importing_stratagem_is_fast() -> None:
    # Interleaved, so that a busy machine slows both; the median of the differences is free of its outliers.
    costs = [_seconds("import stratagem") - _seconds("pass") for _ in range(9)]
    assert statistics.median(costs) < 0.050


def _look_after_importing(*names: str) -> dict[str, Any]:
    output = subprocess.run([sys.executable, "-c", _LOOK, *names], check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def _assert_nothing_happened(seen: dict[str, Any]) -> None:
    assert [name for name in FRAMEWORKS if name in seen["modules"]] == []
    assert seen["environment"], "the environment was written"
    assert seen["handlers"], "the root logger got a handler"
    assert seen["threads"] == ["MainThread"]
    assert seen["children"] is None


def _seconds(statement: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, env=dict(os.environ))
    return time.perf_counter() - started
