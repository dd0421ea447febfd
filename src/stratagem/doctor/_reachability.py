# SPDX-License-Identifier: Apache-2.0
"""Checks between the workers: all are there, and each reaches each."""

from __future__ import annotations

from collections.abc import Iterator

from stratagem.doctor import _addresses
from stratagem.doctor._check import Check, failed, ok, skipped
from stratagem.doctor._ports import FAILURES, FAILURES_OF_ABSENT
from stratagem.doctor._report import REACHED, Report, View

__all__ = ["ports_check", "presence_check"]

_FIREWALL = ("timed out", "no route", "refused")


def presence_check(view: View, seconds: float) -> Check:
    """D14: a doctor runs for every task.

    Args:
        view: What is known.
        seconds: How long this worker has waited.
    """
    missing = view.missing()
    if not missing:
        return ok("D14", f"all {len(view.me.tasks)} workers are there")
    texts: list[str] = []
    for task in missing:
        call = view.me.calls.get(task)
        why = f"; {view.me.task} calls it: {FAILURES_OF_ABSENT.get(call.how, call.how)}" if call else ""
        if call is not None and call.how == REACHED:
            says = [report.task for report in view.reports if report.nonce == call.answered_by]
            why = f"; at its address answers one that says to be {' '.join(says) or 'another task'}"
        texts.append(f"{view.named(task)} did not come within {seconds:g} seconds{why}")
    command = "; ".join(_open_command(port, "") for port in sorted({_port(view, task) for task in missing}))
    return failed(
        "D14",
        texts,
        "run stratagem doctor on all workers at about the same time; where a firewall is in the way, open the port "
        f"there: {command}",
    )


def ports_check(view: View) -> Check:
    """D17: every worker that is there reaches every other one."""
    broken = dict(_broken(view))
    pairs = sum(1 for _ in _pairs(view))
    if not broken:
        return ok("D17", f"all {pairs} directions between {len(view.reports)} workers") if pairs else _alone()
    texts: list[str] = []
    fixes: list[str] = []
    for (target, how), callers in broken.items():
        names = ", ".join(caller.task for caller in callers)
        back = [caller.task for caller in callers if _reaches(view, target, caller.task)]
        other_way = f" (the other way, {target} reaches {', '.join(back)})" if back else ""
        texts.append(
            f"{names} can't reach {view.named(target)}, port {_port(view, target)}: {FAILURES.get(how, how)}{other_way}"
        )
        if how in _FIREWALL:
            sources = [caller.ip for caller in callers if caller.ip]
            fixes.append(f"on {target}: {_open_command(_port(view, target), sources[0] if len(sources) == 1 else '')}")
        elif how == "stranger":
            fixes.append(f"on {target}: end what listens at port {_port(view, target)}, or install the same stratagem")
    return failed("D17", texts, "; ".join(dict.fromkeys(fixes)) or "see the other checks")


def _alone() -> Check:
    return skipped("D17", "no other worker came")


def _pairs(view: View) -> Iterator[tuple[Report, Report]]:
    """Who calls whom, of those that are there and listen."""
    for caller in view.reports:
        for target in view.reports:
            if caller.task != target.task and target.listening and target.task in dict(caller.tasks):
                yield caller, target


def _broken(view: View) -> list[tuple[tuple[str, str], list[Report]]]:
    """For each task and way to fail, those whose calls to it failed that way."""
    found: dict[tuple[str, str], list[Report]] = {}
    for caller, target in _pairs(view):
        call = caller.calls.get(target.task)
        how = "timed out" if call is None else call.how
        callers = found.setdefault((target.task, how), [])
        if caller not in callers:
            callers.append(caller)
    return [(key, callers) for key, callers in found.items() if key[1] not in (REACHED, "unresolved")]


def _reaches(view: View, caller: str, target: str) -> bool:
    return any(report.calls[target].how == REACHED for report in view.of(caller) if target in report.calls)


def _port(view: View, task: str) -> int:
    return _addresses.split(view.address(task))[1] or 0


def _open_command(port: int, source: str) -> str:
    return f"sudo ufw allow proto tcp from {source or 'any'} to any port {port}"
