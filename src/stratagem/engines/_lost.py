# SPDX-License-Identifier: Apache-2.0
"""The errors about a replica that does not come: it died, failed, ended, or is late.

`noun` is "process" where one holds several replicas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from stratagem.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    ReplicaFailedError,
    StratagemError,
    WorkerLostError,
)

__all__ = ["alive", "died", "exit_as_lost", "exit_now", "failed", "late", "left", "lost"]

# EX_TEMPFAIL: nothing is wrong with the program, and it may be started again.
_EXIT_CODE = 75
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
    return WorkerLostError(
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


def failed(name: str, waiting: str, what: str) -> StratagemError:
    """The program of process `name` raised an error."""
    return ReplicaFailedError(
        f"the program of {name} failed while {waiting} waited in {what}", fix=f"read what {name} printed last"
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


def lost(
    name: str, how: str, last: tuple[str, int, float, int, str] | None, waiting: str, step: int, doing: str
) -> StratagemError:
    """Process `name` of a job is gone; `last` is what was heard last: host, pid, seconds ago, step and collective."""
    known = "nothing was heard of it before"
    if last is not None:
        host, pid, ago_seconds, its_step, its_doing = last
        known = (
            f"it ran on {host} as pid {pid}, and {ago_seconds:.1f} seconds ago was at step {its_step}, in {its_doing}"
        )
    return WorkerLostError(
        f"{name} {how}; {known}; {waiting} is at step {step}, in {doing}",
        fix=f"read what {name} printed last; stratagem run --max-restarts lets the job begin again by itself, and "
        "stratagem.BackupAndRestore where it stood",
    )


def exit_now() -> NoReturn:
    """End this process at once: it waits where no error can reach it."""
    sys.stdout.flush()
    os._exit(_EXIT_CODE)


def exit_as_lost() -> None:
    """At the end of a program that a lost process ended: let its exit code say so."""
    # Set by the interpreter when it ends because of an exception that nobody caught.
    if isinstance(getattr(sys, "last_value", None), WorkerLostError):
        sys.stderr.flush()
        exit_now()
