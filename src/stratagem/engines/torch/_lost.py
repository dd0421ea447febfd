# SPDX-License-Identifier: Apache-2.0
"""The errors about a replica that does not come: it died, failed, ended, or is late."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem.errors import CollectiveMismatchError, CollectiveTimeoutError, ReplicaFailedError, StratagemError

_SAME_CALLS = "make every replica call the same collectives in the same order"


def alive(pid: int) -> bool:
    """Whether a process of this host runs, or at least is only stopped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The state follows the name, which may hold anything, in parentheses; Z and X are dead.
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def died(rank: int, pid: int, waiting: int, what: str) -> StratagemError:
    """The process of replica `rank` is no more."""
    return ReplicaFailedError(
        f"the process of replica {rank} (pid {pid}) died while replica {waiting} waited in {what}",
        fix=f"read the last lines that replica {rank} printed",
    )


def left(rank: int, failed: bool, waiting: int, what: str) -> StratagemError:
    """The program of replica `rank` has come to its end."""
    if failed:
        return ReplicaFailedError(
            f"the program of replica {rank} failed while replica {waiting} waited in {what}",
            fix=f"read the last lines that replica {rank} printed",
        )
    return CollectiveMismatchError(
        f"replica {waiting} waits in {what}, but the program of replica {rank} has ended", fix=_SAME_CALLS
    )


def late(missing: Mapping[int, str], world_size: int, waiting: int, what: str, seconds: float) -> StratagemError:
    """Replicas did not come in time; `missing` says of each what it did last."""
    last = "; ".join(f"replica {rank} is {doing}" for rank, doing in missing.items())
    return CollectiveTimeoutError(
        f"replica {waiting} waited {seconds:.3g} seconds in {what} for replica {', '.join(map(str, missing))} "
        f"of {world_size}: {last}",
        fix=f"{_SAME_CALLS}; if it is only slow, set STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS higher",
    )
