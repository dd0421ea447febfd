# SPDX-License-Identifier: Apache-2.0
"""The whole examination: this host, and with a cluster the others together with their doctors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from stratagem import launch
from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.doctor import _cluster, _consultation, _hardware, _host
from stratagem.doctor._check import NAMES, Check, Diagnosis, skipped
from stratagem.doctor._probe import Probe
from stratagem.errors import ArgumentError, BackendError

__all__ = ["Request", "examine"]

T = TypeVar("T")

_PROBE_SECONDS = 60.0  # to load a framework from a slow file system
_LOOK_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `stratagem doctor` was asked.

    Attributes:
        workers: The addresses of all workers, with commas between them, or None for those of TF_CONFIG.
        task_index: Which of `workers` this host is; None to find out.
        backend: The Keras backend; None for the one that a job would use.
        shared: A folder that is to be the same on all workers, or None.
        timeout_seconds: How long to wait for the other workers.
    """

    workers: str | None = None
    task_index: int | None = None
    backend: str | None = None
    shared: Path | None = None
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.task_index is not None and self.workers is None:
            raise ArgumentError(
                "--task-index is given without --workers", fix="add --workers; in TF_CONFIG the task has its index"
            )
        if self.timeout_seconds <= 0:
            raise ArgumentError(f"--timeout {self.timeout_seconds:g} is not a positive number", fix="--timeout 30")


def examine(request: Request, say: Callable[[str], None]) -> Diagnosis:
    """Make all checks.

    Args:
        request: What to look at.
        say: Gets a line for each thing that is waited for.

    Raises:
        ArgumentError: the workers that were named can't be those of a cluster.
    """
    cluster, cluster_check = _read_cluster(request)
    chosen = _host.chosen_backend(request.backend)
    backend = None if isinstance(chosen, BackendError) else chosen
    backend_check = _host.backend_check(chosen)
    installed = backend is not None and bool(_host.versions(backend).get(backend))
    found: list[Check] = [
        _host.versions_check(_host.versions(backend)),
        backend_check,
        _host.threads_check(launch.num_cores(), _host.num_quota_cores(), env.inherited().get("OMP_NUM_THREADS")),
        _host.shm_check(),
        cluster_check,
    ]
    hardware = _Later(_hardware.find_hardware)
    if backend is None or not installed:
        found.append(skipped("D03", "without a backend nothing computes"))
        found += _of_the_cluster(request, cluster, None, say)
        return _diagnosis(cluster, found)
    variables = {env.KERAS_BACKEND: backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # It loads the framework while the others are waited for.
    with Probe("stratagem.doctor._devices", {"backend": backend}, variables) as probe:
        found += _of_the_cluster(request, cluster, backend, say)
        answer = probe.answer(_PROBE_SECONDS)
    seen = _hardware.Seen(**answer)
    looked = hardware.result(_LOOK_SECONDS, _hardware.Hardware())
    found.append(_hardware.devices_check(backend, looked, seen, env.inherited()))
    return _diagnosis(cluster, found)


def _read_cluster(request: Request) -> tuple[Cluster | None, Check]:
    if request.workers is None:
        return _cluster.from_environment()
    cluster = _cluster.from_workers(request.workers, request.task_index)
    return _cluster.usable(cluster), _cluster.cluster_check(cluster, "--workers")


def _of_the_cluster(
    request: Request, cluster: Cluster | None, backend: str | None, say: Callable[[str], None]
) -> list[Check]:
    if cluster is None:
        return []
    return _consultation.consult(
        cluster,
        backend=backend or "",
        shared=request.shared,
        timeout_seconds=request.timeout_seconds,
        say=say,
    )


def _diagnosis(cluster: Cluster | None, found: list[Check]) -> Diagnosis:
    made = {check.code: check for check in found}
    without = "there is no cluster: set TF_CONFIG, or --workers host-a:2222,host-b:2222"
    return Diagnosis(
        task=None if cluster is None else cluster.tasks[cluster.rank][0],
        checks=tuple(made.get(code) or skipped(code, without) for code in NAMES),
    )


class _Later(Generic[T]):
    """A function that runs in the background; its thread holds nothing up, whatever it waits for."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._results: list[T] = []
        self._thread = threading.Thread(target=lambda: self._results.append(call()), daemon=True)
        self._thread.start()

    def result(self, seconds: float, otherwise: T) -> T:
        """What it returned, or `otherwise` if it is not there within `seconds`."""
        self._thread.join(seconds)
        return self._results[0] if self._results else otherwise
