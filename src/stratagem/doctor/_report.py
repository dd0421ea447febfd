# SPDX-License-Identifier: Apache-2.0
"""What the doctor of one worker knows, as the doctors hand it on, and the table of all such reports."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["REACHED", "Call", "Report", "Table", "View"]

REACHED = "reached"


@dataclass(frozen=True, kw_only=True)
class Call:
    """How the calls of one worker to a task's address ended.

    Attributes:
        how: REACHED, or what went wrong: a key of the table in `_ports`.
        detail: The error's own words, or "".
        answered_by: Whose report has the `nonce` of the doctor that answered, or "".
        clock_offset_seconds: How far its clock is ahead of the caller's; None where it did not answer.
    """

    how: str
    detail: str = ""
    answered_by: str = ""
    clock_offset_seconds: float | None = None


def _tells_less(call: Call, before: Call) -> bool:
    """Whether `call` got no answer where `before` was turned away: routers send only some of those answers."""
    return call.how == "timed out" and before.how in ("refused", "no route")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the doctor of one worker knows of itself and of its calls to the others.

    Attributes:
        task: The task it was told to be, such as "worker:0".
        host: Its host's name.
        ip: The address of its host that its own task's address stands for, or "".
        tasks: The cluster it was given: each task's name and address.
        backend: The Keras backend.
        versions: By package.
        port_problem: Why it can't listen at its task's port, or None where it does.
        word: What its file in the shared folder says, or None without one.
        calls: By task, how its calls ended, so far.
        settled: Whether `calls` will change no more.
        sees: The nonces of those whose files in the shared folder it has read; None as long as it reads.
        meeting_port: Of the first task: where all meet for the all-reduce.
        reduction: What came of the all-reduce, or None before it.
        done: Whether it waits for nothing more.
        nonce: Which process this is: two that say to be the same task differ in it.
        number: Goes up with each change; the higher one is the newer report.
    """

    task: str
    host: str
    ip: str = ""
    tasks: tuple[tuple[str, str], ...] = ()
    backend: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    port_problem: str | None = None
    word: str | None = None
    calls: Mapping[str, Call] = field(default_factory=dict)
    settled: bool = False
    sees: tuple[str, ...] | None = None
    meeting_port: int | None = None
    reduction: Mapping[str, Any] | None = None
    done: bool = False
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0

    @property
    def listening(self) -> bool:
        """Whether it answers at its task's port."""
        return self.port_problem is None

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, sent: Any) -> Report:
        """The report that was sent.

        Raises:
            ValueError: it is none.
        """
        try:
            report = cls(
                **{
                    **sent,
                    "tasks": tuple((str(name), str(address)) for name, address in sent["tasks"]),
                    "versions": {str(name): str(version) for name, version in sent["versions"].items()},
                    "calls": {str(task): Call(**call) for task, call in sent["calls"].items()},
                    "sees": None if sent["sees"] is None else tuple(map(str, sent["sees"])),
                }
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a report: {error}") from error
        for name, kind in _KINDS.items():
            if not isinstance(getattr(report, name), kind):
                raise ValueError(f"not a report: {name} is {getattr(report, name)!r:.60}")
        return report


_KINDS = {
    **dict.fromkeys(("task", "host", "ip", "backend", "nonce"), str),
    **dict.fromkeys(("word", "port_problem"), str | None),
    "number": int,
    "meeting_port": int | None,
    "reduction": dict | None,
}


@dataclass(frozen=True, kw_only=True)
class View:
    """All that one doctor knows at one moment.

    Attributes:
        me: Its own report.
        others: The reports of others that it got, by task, then by nonce.
    """

    me: Report
    others: tuple[Report, ...]

    @property
    def reports(self) -> tuple[Report, ...]:
        """All of them, by task."""
        order = {name: number for number, (name, _) in enumerate(self.me.tasks)}
        return tuple(sorted((self.me, *self.others), key=lambda one: (order.get(one.task, len(order)), one.nonce)))

    def of(self, task: str) -> list[Report]:
        """The reports of those that say to be `task`."""
        return [report for report in self.reports if report.task == task]

    def missing(self) -> list[str]:
        """The tasks of which there is no report."""
        present = {report.task for report in self.reports}
        return [name for name, _ in self.me.tasks if name not in present]

    def address(self, task: str) -> str:
        """Where `task` is, as this worker was told."""
        return dict(self.me.tasks).get(task, "")

    def named(self, task: str) -> str:
        """A task for people: its name and address."""
        return f"{task} ({self.address(task)})" if self.address(task) else task


class Table:
    """The newest report of each worker, for several threads.

    Args:
        me: This worker's first report.
    """

    def __init__(self, me: Report) -> None:
        self._nonce = me.nonce
        self._reports = {me.nonce: me}
        self._first_seen: dict[str, float] = {}
        self._known_to: dict[str, int] = {}
        self._lock = threading.Lock()

    def update(self, **changes: Any) -> None:
        """Change this worker's report."""
        with self._lock:
            me = self._reports[self._nonce]
            self._reports[self._nonce] = dataclasses.replace(me, number=me.number + 1, **changes)

    def note_call(self, task: str, call: Call) -> None:
        """Put a call into this worker's report, unless it says so already or an earlier one got through."""
        with self._lock:
            me = self._reports[self._nonce]
            before = me.calls.get(task)
            if before is not None and (before.how in (REACHED, call.how) or _tells_less(call, before)):
                return
            calls = {**me.calls, task: call}
            self._reports[self._nonce] = dataclasses.replace(me, number=me.number + 1, calls=calls)

    def merge(self, reports: Iterable[Report]) -> None:
        """Take over what is newer; nobody else knows better about this worker."""
        with self._lock:
            for report in reports:
                known = self._reports.get(report.nonce)
                if report.nonce != self._nonce and (known is None or known.number < report.number):
                    self._reports[report.nonce] = report
                    self._first_seen.setdefault(report.nonce, time.monotonic())

    def numbers(self) -> dict[str, int]:
        """Of each report how new it is."""
        with self._lock:
            return {nonce: report.number for nonce, report in self._reports.items()}

    def newer_than(self, numbers: Mapping[str, int]) -> list[Report]:
        """The reports that somebody with those `numbers` lacks."""
        with self._lock:
            return [report for nonce, report in self._reports.items() if report.number > numbers.get(nonce, -1)]

    def note_knowledge(self, nonce: str, numbers: Mapping[str, int]) -> None:
        """Remember how much of this worker's report another one has."""
        if nonce == self._nonce:
            return
        with self._lock:
            self._known_to[nonce] = max(self._known_to.get(nonce, -1), int(numbers.get(self._nonce, -1)))

    def told_all(self) -> bool:
        """Whether everybody who has ever spoken with this worker knows its newest report."""
        with self._lock:
            newest = self._reports[self._nonce].number
            return all(number >= newest for number in self._known_to.values())

    def first_seen(self, nonce: str) -> float:
        """When, on the monotonic clock, the first report of another worker came."""
        with self._lock:
            return self._first_seen[nonce]

    def view(self) -> View:
        """All of it as it is now."""
        with self._lock:
            reports = dict(self._reports)
        me = reports.pop(self._nonce)
        return View(me=me, others=tuple(reports.values()))
