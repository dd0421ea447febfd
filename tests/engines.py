# SPDX-License-Identifier: Apache-2.0
"""The engines that suites run on, and what differs between their jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

ENGINES = ("torch", "jax")


def thorough(*values: Any) -> Any:
    """A row that the suite leaves out, and `make test-thorough` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def num_processes(engine: str, replicas: int) -> int:
    """With torch each replica is a process; with jax one process has them all."""
    return replicas if engine == "torch" else 1


@contextlib.contextmanager
def compiling_quickly() -> Iterator[None]:
    """Leave out most of XLA's optimisations, which take most of the time of small programs; golden cases have them."""
    import keras

    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
