# SPDX-License-Identifier: Apache-2.0
"""Which tasks there are, and which of them this host is: from --workers, or else from TF_CONFIG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stratagem._core.cluster import Cluster
from stratagem.cluster_resolver import _tf_config as tf_config
from stratagem.doctor import _addresses
from stratagem.doctor._check import Check, failed, ok, warning
from stratagem.errors import ArgumentError

__all__ = ["cluster_check", "from_environment", "from_workers", "usable"]

_EXAMPLE = "--workers host-a:2222,host-b:2222"


def from_workers(workers: str, task_index: int | None) -> Cluster:
    """The cluster that --workers names; without an index this is the worker with an address of this host.

    Raises:
        ArgumentError: an address names no port, or it can't be told which of the workers this is.
    """
    addresses = [address.strip() for address in workers.split(",")]
    for address in addresses:
        if not address or _addresses.split(address)[1] is None:
            raise ArgumentError(f"--workers has {address!r}, which is no host:port", fix=_EXAMPLE)
    if len(addresses) < 2:
        raise ArgumentError("--workers names one worker; what is checked is between several", fix=_EXAMPLE)
    if task_index is None:
        task_index = _own_index(addresses)
    if not 0 <= task_index < len(addresses):
        raise ArgumentError(
            f"--task-index {task_index} is none of the {len(addresses)} workers", fix=f"0 to {len(addresses) - 1}"
        )
    return Cluster(
        tasks=tuple((f"worker:{index}", address) for index, address in enumerate(addresses)), rank=task_index
    )


def _own_index(addresses: Sequence[str]) -> int:
    ips = [_addresses.resolve(_addresses.split(address)[0]) for address in addresses]
    own = [index for index, found in enumerate(ips) if any(_addresses.is_local(ip) for ip in found)]
    if len(own) == 1:
        return own[0]
    which = f"{len(own)} of the workers have" if own else "none of the workers has"
    raise ArgumentError(
        f"{which} an address of this host, so which of them it is can't be told",
        fix=f"--task-index {own[0] if own else 0}, and so on, on each its own number",
    )


def from_environment() -> tuple[Cluster | None, Check]:
    """The cluster in TF_CONFIG, if this task trains in step with others, and D06."""
    try:
        cluster = tf_config.from_tf_config()
    except ArgumentError as error:
        return None, failed("D06", error.problem, error.fix or "unset TF_CONFIG")
    if cluster is None:
        return None, ok("D06", "this process trains with no other: TF_CONFIG names none, and --workers is not given")
    return usable(cluster), cluster_check(cluster, "TF_CONFIG")


def usable(cluster: Cluster) -> Cluster | None:
    """The cluster, if its addresses can be called."""
    return None if _unusable(cluster) else cluster


def cluster_check(cluster: Cluster, source: str) -> Check:
    """D06: the addresses can be those of a cluster."""
    bad = _unusable(cluster)
    if bad:
        return failed("D06", [f"{source}: {text}" for text in bad], 'give each task an address such as "host-a:2222"')
    tasks = cluster.tasks
    local = [name for name, address in tasks if _addresses.split(address)[0] in ("localhost", "127.0.0.1", "::1")]
    advice = "use names or addresses by which the hosts know each other"
    if len(local) == len(tasks):
        return warning("D06", f"{source}: all addresses are this host's own, so no other host can take part", advice)
    if local:
        return failed("D06", f"{source}: {', '.join(local)} can't be reached from other hosts at localhost", advice)
    differs = _tf_config_differs(cluster)
    if differs:
        return warning(
            "D06",
            f"{source} is what is looked at, but your program reads TF_CONFIG: {differs}",
            "leave --workers out, or correct TF_CONFIG",
        )
    return ok("D06", f"{len(tasks)} tasks from {source}, this one is {tasks[cluster.rank][0]}")


def _tf_config_differs(cluster: Cluster) -> str | None:
    try:
        other = tf_config.from_tf_config()
    except ArgumentError as error:
        return error.problem
    if other is None or [address for _, address in other.tasks] == [address for _, address in cluster.tasks]:
        return None
    return f"its tasks are at {', '.join(address for _, address in other.tasks)}"


def _unusable(cluster: Cluster) -> list[str]:
    bad = [
        f"the address {address!r} of {name} names no port"
        for name, address in cluster.tasks
        if _addresses.split(address)[1] is None
    ]
    often = Counter(address for _, address in cluster.tasks)
    for address, count in often.items():
        if count > 1:
            names = [name for name, theirs in cluster.tasks if theirs == address]
            bad.append(f"{' and '.join(names)} have the same address {address}")
    return bad
