# SPDX-License-Identifier: Apache-2.0
"""Checks of one worker's own place in the cluster: names, its address, its port, its host's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratagem.doctor import _addresses
from stratagem.doctor._check import Check, failed, ok, warning
from stratagem.doctor._report import REACHED, Report, View
from stratagem.engines._network import interface_of

__all__ = ["address_check", "host_name_check", "names_check", "port_check"]


def names_check(view: View) -> Check:
    """D10: every worker knows all names of the cluster."""
    unknown: dict[str, list[str]] = {}
    for report in view.reports:
        for task, call in report.calls.items():
            if call.how == "unresolved":
                unknown.setdefault(dict(report.tasks)[task], []).append(report.task)
    if not unknown:
        return ok("D10", f"the names of all {len(view.me.tasks)} tasks resolve")
    names = {address: _addresses.split(address)[0] for address in unknown}
    return failed(
        "D10",
        [
            f"{names[address]!r}, in the address of {_tasks_at(view, address)}, does not resolve on {', '.join(on)}"
            for address, on in unknown.items()
        ],
        "correct the name, or add it to DNS or to /etc/hosts of these workers; "
        f"getent hosts {next(iter(names.values()))} shows what it stands for",
    )


def address_check(view: View, ips: Sequence[str]) -> Check:
    """D11: the own task's address leads to this host.

    Args:
        view: What is known.
        ips: What the address's name stands for.
    """
    me = view.me
    named = view.named(me.task)
    local = [ip for ip in ips if _addresses.is_local(ip)]
    if local:
        return ok("D11", f"{named} is this host, {me.host}")
    call = me.calls.get(me.task)
    if call is not None and call.how == REACHED and call.answered_by == me.nonce:
        return ok("D11", f"{named} leads to this host, {me.host}, by translation of addresses")
    mine = [name for name, address in me.tasks if _is_here(address)]
    if mine:
        index = mine[0].rpartition(":")[2]
        return failed(
            "D11",
            f"this process was told to be {named}, but on this host, {me.host}, lies the address of {mine[0]}",
            f'give it the task of its host: "index": {index}',
        )
    return failed(
        "D11",
        f"the address of {named} is none of this host, {me.host}",
        "give each host its own task's index, and each task the address by which the others reach its host",
    )


def port_check(view: View) -> Check:
    """D12: every worker can listen at its task's port."""
    taken = [report for report in view.reports if not report.listening]
    if not taken:
        return ok("D12", f"port {_port(view.me)} is free here, and so are the others' there")
    return failed(
        "D12",
        [f"{report.task} can't listen at its port {_port(report)}: {report.port_problem}" for report in taken],
        f"on {', '.join(report.task for report in taken)}: end that process, or choose another port in all workers; "
        f"sudo ss -ltnp 'sport = :{_port(taken[0])}' shows who has it",
    )


def host_name_check(host: str, ips: Sequence[str], ip: str, backend: str | None, variables: Mapping[str, str]) -> Check:
    """D13: gloo, which carries collectives between CPUs, can use the address that the host's own name stands for.

    Args:
        host: The host's name.
        ips: What it stands for here.
        ip: The address of the own task.
        backend: The Keras backend.
        variables: The environment.
    """
    interface = variables.get("GLOO_SOCKET_IFNAME")
    if backend == "torch" and interface:
        return ok("D13", f"GLOO_SOCKET_IFNAME={interface} says where collectives between CPUs listen")
    local = [found for found in ips if _addresses.is_local(found)]
    if local and (not _addresses.is_loopback(local) or (ip and _addresses.is_loopback([ip]))):
        return ok("D13", f"the name {host} stands for {', '.join(local)} on this host")
    stands = f"stands for {', '.join(ips)}" if ips else "does not resolve"
    known = interface_of(ip)
    fix = f"in /etc/hosts, let {host} stand for {ip or 'the address by which the others reach this host'}"
    if backend == "torch" and known:
        fix = f"export GLOO_SOCKET_IFNAME={known}; or {fix}"
    return warning(
        "D13",
        f"this host's own name {host} {stands}; collectives between CPUs listen at the address of that name, and the "
        "other hosts can't reach them there",
        fix,
    )


def _port(report: Report) -> int | None:
    return _addresses.split(dict(report.tasks).get(report.task, ""))[1]


def _is_here(address: str) -> bool:
    return any(_addresses.is_local(ip) for ip in _addresses.resolve(_addresses.split(address)[0]))


def _tasks_at(view: View, address: str) -> str:
    tasks = {name: None for report in view.reports for name, theirs in report.tasks if theirs == address}
    return ", ".join(tasks)
