# SPDX-License-Identifier: Apache-2.0
"""Tests of what only the jax backend has; a run of pytest of their own, with KERAS_BACKEND=jax, collects them."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

import pytest

from stratagem.engines import select

ON_JAX = os.environ.get("KERAS_BACKEND") == "jax"
DEVICES = 4

if ON_JAX:
    os.environ["STRATAGEM_CPU_DEVICES"] = str(DEVICES)

collect_ignore_glob = [] if ON_JAX else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def everything_that_keras_may_load() -> None:
    """Keras loads TensorFlow, where it is there, when it first reads data; and that writes environment variables."""
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorflow")
    # jax takes the number of its CPU devices once, when it starts.
    assert len(select.engine().local_devices()) == DEVICES


@pytest.fixture
def strategy() -> Any:
    """`MirroredStrategy` over all of this process's CPU devices."""
    import stratagem

    made = stratagem.MirroredStrategy()
    assert made.num_replicas_in_sync == DEVICES
    return made
