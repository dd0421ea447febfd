# SPDX-License-Identifier: Apache-2.0
"""Keras with and without hooks."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

import keras
import pytest

from stratagem.keras_fit._torch import _hooks


@pytest.fixture(scope="session", autouse=True)
def everything_that_keras_may_load() -> None:
    """Keras loads TensorFlow, where it is there, when it first reads data; and that writes environment variables."""
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorflow")


@pytest.fixture(autouse=True)
def keras_as_it_is() -> Iterator[None]:
    """No hook is installed when a test begins; afterwards they are as they were."""
    were_installed = _hooks.HOOKS.installed
    _hooks.uninstall()
    keras.utils.clear_session(free_memory=False)
    yield
    _hooks.uninstall()
    if were_installed:
        _hooks.install()
