# SPDX-License-Identifier: Apache-2.0
"""The errors about a replica that does not come: it died, failed, ended, or is late.

Each is named for people: "replica 1", "process 1" where one holds several replicas, or "/worker:1 (host-b:2222)".
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

__all__ = ["alive", "died", "exit_as_lost", "exit_now", "late", "left", "lost"]

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


def died(name: str, pid: int, waiting: str, what: str) -> StratagemError:
    """The process `name` is no more."""
    return WorkerLostError(
        f"{_process(name)} (pid {pid}) died while {waiting} waited in {what}",
        fix=f"read the last lines that {name} printed",
    )


def left(name: str, failed: bool, waiting: str, what: str) -> StratagemError:
    """The program of `name` has come to its end."""
    if failed:
        return ReplicaFailedError(
            f"the program of {name} failed while {waiting} waited in {what}",
            fix=f"read the last lines that {name} printed",
        )
    return CollectiveMismatchError(f"{waiting} waits in {what}, but the program of {name} has ended", fix=_SAME_CALLS)


def late(missing: Mapping[str, str], world_size: int, waiting: str, what: str, seconds: float) -> StratagemError:
    """Some did not come in time; `missing` says of each, by name, what it did last."""
    last = "; ".join(f"{name} is {doing}" for name, doing in missing.items())
    return CollectiveTimeoutError(
        f"{waiting} waited {seconds:.3g} seconds in {what} for {', '.join(missing)} of {world_size}: {last}",
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


def _process(name: str) -> str:
    return f"the process of {name}" if name.startswith("replica") else name


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
