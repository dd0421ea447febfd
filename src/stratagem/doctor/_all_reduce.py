# SPDX-License-Identifier: Apache-2.0
"""The timed all-reduce over all workers: when it can be made, how it is started, and what came of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stratagem._core import env
from stratagem.doctor import _addresses
from stratagem.doctor._check import Check, Verdict, failed, ok, skipped
from stratagem.doctor._measure import LARGE_BYTES
from stratagem.doctor._probe import Probe
from stratagem.doctor._report import View

__all__ = ["free_port", "measure", "obstacle", "reduction_check"]

_COLLECTIVE_SECONDS = 20.0
_PROGRAM_SECONDS = 60.0  # with the time to load a framework from a slow file system
_OTHERS_SECONDS = 3.0  # the time for this worker to notice itself that another failed
_WAITED = "it waited for"

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def obstacle(view: View, checks: Mapping[str, Check]) -> str | None:
    """Why the workers can't compute together, so that none of them starts to; None where they can."""
    if not view.others or view.missing():
        return "not all workers are there"
    for code in ("D10", "D12", "D15", "D16", "D17"):
        if checks[code].verdict is Verdict.FAILED:
            return f"{code} failed"
    backends = {report.backend for report in view.reports}
    if len(backends) > 1:
        return "the workers have different backends"
    if "" in backends:
        return "no backend is installed"
    return None


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as asked:
        asked.bind(("", 0))
        return asked.getsockname()[1]


def measure(look: Callable[[], View], port: int) -> dict[str, Any]:
    """Sum with all others; all call this with the same `port` of the first task's host.

    Args:
        look: What is known at the moment.
        port: Where the framework's processes meet.

    Returns:
        What `_measure` answers, or {"problem": why there is no answer}.
    """
    me = look().me
    tasks = [list(task) for task in me.tasks]
    host = _addresses.split(tasks[0][1])[0]
    tasks[0][1] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    rank = [name for name, _ in tasks].index(me.task)
    variables = {
        env.KERAS_BACKEND: me.backend,
        env.COLLECTIVE_TIMEOUT_SECONDS: str(_COLLECTIVE_SECONDS),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    request = {"tasks": tasks, "rank": rank}
    with Probe("stratagem.doctor._measure", request, variables) as probe:
        return probe.answer(_PROGRAM_SECONDS, _FailureElsewhere(look))


class _FailureElsewhere:
    """Why to stop: another worker has failed a while ago, so the sum can't come."""

    def __init__(self, look: Callable[[], View]) -> None:
        self._look = look
        self._since: float | None = None

    def __call__(self) -> str | None:
        failures = [report.task for report in self._look().others if "problem" in (report.reduction or {})]
        if not failures:
            return None
        if self._since is None:
            self._since = time.monotonic()
        late = time.monotonic() - self._since > _OTHERS_SECONDS
        return f"{_WAITED} {', '.join(failures)}" if late else None


def reduction_check(view: View, reason: str | None) -> Check:
    """D21: the sum came out right on all workers; how long it took.

    Args:
        view: What is known.
        reason: Why it was not tried, or None.
    """
    if reason is not None:
        return skipped("D21", reason)
    mine = view.me.reduction or {"problem": "it was not tried"}
    problems = {
        report.task: (report.reduction or {}).get("problem", "its result did not come")
        for report in view.reports
        if report.reduction is None or "problem" in report.reduction
    }
    if problems:
        # Who waited for another tells nothing new.
        told = {task: why for task, why in problems.items() if not why.startswith(_WAITED)} or problems
        texts = [f"{task}: {why}" for task, why in told.items()]
        return failed(
            "D21",
            ["the workers can't sum tensors together", *texts],
            "where D13 warns, do what it says; where a firewall is in the way, open all ports that the system gives "
            f"out ({_ephemeral_ports()}) between the workers, since collectives choose their own; otherwise see that "
            "a program of one process runs on each worker",
        )
    rate = LARGE_BYTES / 1e6 / mine["large_seconds"]
    return ok(
        "D21",
        f"{LARGE_BYTES / 1e6:g} MB over {len(view.reports)} workers in {mine['large_seconds'] * 1e3:.1f} ms "
        f"({rate:.0f} MB/s), 4 bytes in {mine['small_seconds'] * 1e3:.2f} ms; {mine['by']}",
    )


def _ephemeral_ports() -> str:
    if not _EPHEMERAL.exists():
        return "49152-65535"
    return "-".join(_EPHEMERAL.read_text().split())
