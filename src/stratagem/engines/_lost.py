# SPDX-License-Identifier: Apache-2.0
"""The errors about a replica that does not come: it died, failed, ended, or is late.

`noun` is "process" where one holds several replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratagem.errors import CollectiveMismatchError, CollectiveTimeoutError, ReplicaFailedError, StratagemError

__all__ = ["alive", "died", "late", "left"]

_SAME_CALLS = "make every replica call the same collectives in the same order"


def alive(pid: int) -> bool:
    """Whether a process of this host runs, or at least is only stopped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The state follows the name, which may hold anything, in parentheses; Z and X are dead.
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def died(rank: int, pid: int, waiting: int, what: str, noun: str = "replica") -> StratagemError:
    """The process of replica `rank` is no more."""
    gone = f"the process of replica {rank}" if noun == "replica" else f"{noun} {rank}"
    return ReplicaFailedError(
        f"{gone} (pid {pid}) died while {noun} {waiting} waited in {what}",
        fix=f"read the last lines that {noun} {rank} printed",
    )


def left(rank: int, failed: bool, waiting: int, what: str, noun: str = "replica") -> StratagemError:
    """The program of replica `rank` has come to its end."""
    if failed:
        return ReplicaFailedError(
            f"the program of {noun} {rank} failed while {noun} {waiting} waited in {what}",
            fix=f"read the last lines that {noun} {rank} printed",
        )
    return CollectiveMismatchError(
        f"{noun} {waiting} waits in {what}, but the program of {noun} {rank} has ended", fix=_SAME_CALLS
    )


def late(
    missing: Mapping[int, str], world_size: int, waiting: int, what: str, seconds: float, noun: str = "replica"
) -> StratagemError:
    """Replicas did not come in time; `missing` says of each what it did last."""
    last = "; ".join(f"{noun} {rank} is {doing}" for rank, doing in missing.items())
    return CollectiveTimeoutError(
        f"{noun} {waiting} waited {seconds:.3g} seconds in {what} for {noun} {', '.join(map(str, missing))} "
        f"of {world_size}: {last}",
        fix=f"{_SAME_CALLS}; if it is only slow, set STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS higher",
    )
