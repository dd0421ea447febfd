# SPDX-License-Identifier: Apache-2.0
"""The engines that suites run on, and what differs between their jobs."""

from __future__ import annotations

ENGINES = ("torch", "jax")


def num_processes(engine: str, replicas: int) -> int:
    """With torch each replica is a process; with jax one process has them all."""
    return replicas if engine == "torch" else 1
