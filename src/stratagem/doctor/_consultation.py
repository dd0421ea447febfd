# SPDX-License-Identifier: Apache-2.0
"""The checks of a cluster, made by the doctors of all its workers together, step by step."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.doctor import (
    _addresses,
    _agreement,
    _all_reduce,
    _host,
    _own_task,
    _ports,
    _reachability,
    _shared_folder,
)
from stratagem.doctor._check import Check
from stratagem.doctor._meeting import Meeting
from stratagem.doctor._report import REACHED, Report, Table, View

__all__ = ["consult"]

_POLL_SECONDS = 0.05
_TRIES_SECONDS = 4.5  # two calls that time out, to one that is known to listen
_REFUSALS_SECONDS = 1.5  # several calls that are turned away by something
_FOLDER_SECONDS = 5.0
_DECISION_SECONDS = 20.0
_REDUCTION_SECONDS = 30.0
_FAREWELL_SECONDS = 1.0
_SAY_SECONDS = 5.0


def consult(
    cluster: Cluster, *, backend: str, shared: Path | None, timeout_seconds: float, say: Callable[[str], None]
) -> list[Check]:
    """Make the checks D10 to D21, which the doctors of the other workers make at the same time."""
    task, address = cluster.tasks[cluster.rank]
    host, port = _addresses.split(address)
    ips = _addresses.resolve(host)
    me = Report(
        task=task,
        host=socket.gethostname(),
        ip=_addresses.outward_ip(ips, [_addresses.split(there)[0] for name, there in cluster.tasks if name != task]),
        tasks=cluster.tasks,
        backend=backend,
        versions=_host.versions(backend or None),
    )
    with contextlib.ExitStack() as opened:
        word = opened.enter_context(_shared_folder.left_word(shared, me.nonce))
        listener, problem = _listener(port or 0)
        table = Table(me)
        table.update(word=word.text, port_problem=problem)
        opened.enter_context(Meeting(table, listener))
        consultation = _Consultation(table, timeout_seconds, say)
        consultation.meet()
        consultation.read_words(shared if word.text else None)
        checks = consultation.first_checks()
        checks["D11"] = _own_task.address_check(table.view(), ips)
        checks["D13"] = _own_task.host_name_check(me.host, _addresses.resolve(me.host), me.ip, backend, env.inherited())
        checks["D20"] = _shared_folder.shared_check(table.view(), shared, word.problem)
        reason = consultation.reduce(checks)
        checks["D21"] = _all_reduce.reduction_check(table.view(), reason)
        consultation.take_leave()
    return list(checks.values())


def _listener(port: int) -> tuple[socket.socket | None, str | None]:
    """A socket that listens at `port`, or why there is none."""
    try:
        return _ports.listen(port), None
    except OSError as error:
        owner = _ports.owner_of(port)
        return None, f"{owner} has it" if owner else error.strerror or str(error)


@dataclass
class _Consultation:
    """This worker's way through the steps; each has a limit, and those who are late are waited for no longer."""

    table: Table
    timeout_seconds: float
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._started = time.monotonic()

    def meet(self) -> None:
        """Call all others until each was reached, or can't be; then wait until they have done so too."""
        self._wait(
            lambda view: [task for task, _ in view.me.tasks if not self._is_settled(view, task)], until="to answer"
        )
        self.table.update(settled=True)
        left = max(0.0, self.timeout_seconds - (time.monotonic() - self._started))
        self._wait(
            lambda view: [one.task for one in view.others if not one.settled],
            until="to end its calls",
            seconds=left + _TRIES_SECONDS,
        )

    def read_words(self, folder: Path | None) -> None:
        """Look for the words of all others in the shared folder."""
        if folder is None:
            self.table.update(sees=())
            return

        def unseen(view: View) -> list[str]:
            nonces = _shared_folder.seen(folder, view.reports)
            return [report.task for report in view.reports if report.word and report.nonce not in nonces]

        self._wait(unseen, until="to appear in the shared folder", seconds=_FOLDER_SECONDS)
        self.table.update(sees=_shared_folder.seen(folder, self.table.view().reports))
        self._wait(
            lambda view: [one.task for one in view.others if one.sees is None],
            until="to look into the shared folder",
            seconds=_FOLDER_SECONDS,
        )

    def first_checks(self) -> dict[str, Check]:
        """The checks of what the doctors told each other."""
        view = self.table.view()
        return {
            check.code: check
            for check in (
                _own_task.names_check(view),
                _own_task.port_check(view),
                _reachability.presence_check(view, self.timeout_seconds),
                _agreement.distinct_check(view),
                _agreement.cluster_agreement(view),
                _reachability.ports_check(view),
                _agreement.versions_agreement(view),
                _agreement.clock_check(view),
            )
        }

    def reduce(self, checks: dict[str, Check]) -> str | None:
        """Sum tensors with the others; why not, where that can't be."""
        reason = _all_reduce.obstacle(self.table.view(), checks)
        port = self._meeting_port() if reason is None else None
        if port is None:
            reason = reason or "the first worker did not say where to meet"
            self.table.update(reduction={"problem": f"it did not take part: {reason}"})
            return reason
        self.say("summing tensors with all workers")
        self.table.update(reduction=_all_reduce.measure(self.table.view, port))
        self._wait(
            lambda view: [one.task for one in view.others if one.reduction is None],
            until="to have summed",
            seconds=_REDUCTION_SECONDS,
        )
        return None

    def take_leave(self) -> None:
        """Stay until the others know all that this worker knows, but not for long."""
        self.table.update(done=True)
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while not self.table.told_all() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _meeting_port(self) -> int | None:
        """The port of the first task's host at which the framework's processes meet: that task chooses one."""
        view = self.table.view()
        first = view.me.tasks[0][0]
        if view.me.task == first:
            self.table.update(meeting_port=_all_reduce.free_port())
        else:
            self._wait(
                lambda view: [one.task for one in view.of(first) if one.meeting_port is None],
                until="to say where to meet",
                seconds=_DECISION_SECONDS,
            )
        return self.table.view().of(first)[0].meeting_port

    def _is_settled(self, view: View, task: str) -> bool:
        """Whether it is known for good how calls to `task` end."""
        call = view.me.calls.get(task)
        if call is not None and call.how == REACHED:
            return True
        present = view.of(task)
        if not present:
            return False
        since = min(
            self._started if report.nonce == view.me.nonce else self.table.first_seen(report.nonce)
            for report in present
        )
        enough = _TRIES_SECONDS if call is None or call.how == "timed out" else _REFUSALS_SECONDS
        return not any(report.listening for report in present) or time.monotonic() - since > enough

    def _wait(self, waited_for: Callable[[View], list[str]], *, until: str, seconds: float | None = None) -> None:
        """Poll until no task is waited for, or the time is over; say now and then for which, and what it is to do."""
        started = time.monotonic()
        limit = self.timeout_seconds if seconds is None else seconds
        say_at = started + 1.0
        while tasks := waited_for(view := self.table.view()):
            now = time.monotonic()
            if now - started > limit:
                return
            if now >= say_at:
                names = ", ".join(view.named(task) for task in dict.fromkeys(tasks))
                self.say(f"waiting for {names} {until}, {limit - (now - started):.0f} seconds more at most")
                say_at = now + _SAY_SECONDS
            time.sleep(_POLL_SECONDS)
