# SPDX-License-Identifier: Apache-2.0
"""A contestant: processes that stay alive for all rounds, and block on a socket while another has its turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import _late
from _workloads import GLOBAL_BATCH, WORKLOADS

from stratagem.testing import ReplicaPool

_LIMIT_SECONDS = 600.0
_WARM_UP_STEPS = 2

# In a contestant's process: what trains there.
_trainer: Any = None


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to train.

    Attributes:
        letter: Its name in tables and ratios.
        title: What it is, for the reader.
        trainer: "module:class" of what trains, in the module's own processes.
        processes: How many there are.
        threads: Of each process, where torch computes.
        backend: Keras's.
        devices: Logical CPU devices of each process, where jax computes.
        env: More variables.
    """

    letter: str
    title: str
    trainer: str
    processes: int
    threads: int = 1
    backend: str = "torch"
    devices: int = 1
    env: dict[str, str] = field(default_factory=dict)


class Running:
    """A contestant's processes.

    Args:
        contestant: Which.
        workload: What it trains, a key of WORKLOADS.
    """

    def __init__(self, contestant: Contestant, workload: str) -> None:
        self._contestant = contestant
        self._workload = workload
        threads = {"OMP_NUM_THREADS": str(contestant.threads)} if contestant.backend == "torch" else {}
        replicas = contestant.processes * contestant.devices
        self._pool = ReplicaPool(
            replicas=replicas,
            cpu_devices=replicas,
            # The pool drives torch and jax only.
            backend="jax" if contestant.backend == "jax" else "torch",
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **threads, **contestant.env},
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.close()

    def prepare(self) -> str:
        """Build, compile and warm up; what each process computes with."""
        return self._run(_prepare, self._contestant.backend, self._contestant.trainer, self._workload)

    def seconds_per_step(self, steps: int) -> float:
        """Train for `steps` steps; the first process's wall time, all of it, by step."""
        return self._run(_measure, self._workload, steps) / steps

    def _run(self, function: Callable[..., Any], *args: object) -> Any:
        return self._pool.run(function, *args, timeout_seconds=_LIMIT_SECONDS)[0]


def _prepare(backend: str, trainer: str, workload: str) -> str:
    global _trainer
    # Keras reads this when the trainer's module imports it, below.
    os.environ["KERAS_BACKEND"] = backend
    _trainer = _late.call(trainer, WORKLOADS[workload])
    _measure(workload, _WARM_UP_STEPS)
    return _trainer.threads()


def _measure(workload: str, steps: int) -> float:
    x, y = _late.call("_model:data", WORKLOADS[workload], steps * GLOBAL_BATCH)
    start = time.perf_counter()
    _trainer.train(x, y)
    return time.perf_counter() - start
