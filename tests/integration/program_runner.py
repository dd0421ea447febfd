# SPDX-License-Identifier: Apache-2.0
"""Runs a program of the table by its name, here or in the replicas' processes."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.engines import compiling_quickly
from tests.integration import programs_jax, programs_training
from tests.integration.programs import ONE_ENGINE, PROGRAMS

__all__ = ["ONE_ENGINE", "PROGRAMS", "programs_jax", "programs_training", "run_plain", "run_under_strategy"]


def run_under_strategy(name: str, replicas: int) -> dict[str, Any]:
    """The program under a MirroredStrategy over all devices, of which there are `replicas`; runs in their process."""
    import keras

    import stratagem

    keras.utils.clear_session()
    strategy = stratagem.MirroredStrategy()
    assert strategy.num_replicas_in_sync == replicas
    with compiling_quickly():
        return PROGRAMS[name](strategy.scope)


def run_plain(name: str) -> dict[str, Any]:
    """The program in plain Keras, on one device."""
    import keras

    keras.utils.clear_session()
    with compiling_quickly():
        return PROGRAMS[name](contextlib.nullcontext)
