# SPDX-License-Identifier: Apache-2.0
"""The variables that launchers set for the tasks they start, with errors that name them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from stratagem.errors import ArgumentError

__all__ = ["number", "number_or_none", "place", "place_on_host", "port_for", "text"]

_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below the ports that systems hand out themselves, from 32768


def text(environ: Mapping[str, str], name: str, launcher: str) -> str:
    """A variable.

    Args:
        environ: All variables.
        name: Its name.
        launcher: What sets it, for the error.

    Raises:
        ArgumentError: it is not set.
    """
    value = environ.get(name)
    if not value:
        raise ArgumentError(f"{name} is not set, which {launcher} sets", fix=f"start the program with {launcher}")
    return value


def number(environ: Mapping[str, str], name: str, launcher: str) -> int:
    """A variable that counts or numbers something.

    Args:
        environ: All variables.
        name: Its name.
        launcher: What sets it, for the error.

    Raises:
        ArgumentError: it is not set, or no whole number of 0 or more.
    """
    value = text(environ, name, launcher).strip()
    if not value.isdecimal():
        raise ArgumentError(
            f"{name}={value!r} is not a whole number of 0 or more", fix=f"leave {name} to {launcher}, which sets it"
        )
    return int(value)


def number_or_none(environ: Mapping[str, str], name: str, launcher: str) -> int | None:
    """The same, or None where it is not set."""
    return number(environ, name, launcher) if environ.get(name) else None


def place(environ: Mapping[str, str], index: str, count: str, launcher: str) -> tuple[int, int]:
    """Which of several tasks this one is, and how many there are.

    Args:
        environ: All variables.
        index: The name of the variable that says which.
        count: The name of the variable that says how many.
        launcher: What sets both, for the error.

    Raises:
        ArgumentError: one is not set or no number, or they don't fit each other.
    """
    mine, num_tasks = number(environ, index, launcher), number(environ, count, launcher)
    if mine >= num_tasks:
        raise ArgumentError(
            f"{index}={mine} is not below {count}={num_tasks}", fix=f"leave both to {launcher}, which sets them"
        )
    return mine, num_tasks


def place_on_host(environ: Mapping[str, str], index: str, count: str, launcher: str) -> tuple[int, int]:
    """The same of the tasks on one host: (0, 1) where neither variable is set."""
    if not environ.get(index) and not environ.get(count):
        return 0, 1
    return place(environ, index, count, launcher)


def port_for(job: str) -> int:
    """A port for a job that was given none: the same for all its tasks, and most likely not that of another job.

    >>> 20_000 <= port_for("77") < 30_000
    True
    """
    return _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS
