# SPDX-License-Identifier: Apache-2.0
"""The short forms in which Slurm writes hosts and numbers of tasks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from stratagem.errors import ArgumentError

__all__ = ["expand_counts", "expand_hosts"]

_PART = re.compile(r"(?:[^][,\s]|\[[^][]*\])+")
_PIECE = re.compile(r"\[([^][]*)\]|([^][]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hosts(text: str) -> list[str]:
    """The hosts of a host list, in its order.

    Args:
        text: Such as "n[1-3,07-09],m5".

    Raises:
        ArgumentError: it is no host list.

    >>> expand_hosts("n[1-2,09-10],m5,r[0-1]c[0-1]-ib")
    ['n1', 'n2', 'n09', 'n10', 'm5', 'r0c0-ib', 'r0c1-ib', 'r1c0-ib', 'r1c1-ib']
    """
    parts = _PART.findall(text)
    if not parts or ",".join(parts) != text:
        raise _no_host_list(text)
    return [host for part in parts for host in _hosts(part, text)]


def expand_counts(text: str) -> list[int]:
    """The number of tasks of each host.

    Args:
        text: Such as "2(x3),1".

    Raises:
        ArgumentError: these are no numbers of tasks.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part)
        if found is None:
            raise ArgumentError(
                f"{text!r} is not how Slurm writes numbers of tasks", fix='leave them to srun, which writes "2(x3),1"'
            )
        counts += [int(found.group(1))] * int(found.group(2) or 1)
    return counts


def _hosts(part: str, whole: str) -> Iterator[str]:
    pieces = [
        [fixed] if fixed else list(_numbers(ranges, whole))  # a piece in brackets has several forms
        for ranges, fixed in _PIECE.findall(part)
    ]
    return ("".join(chosen) for chosen in itertools.product(*pieces))


def _numbers(ranges: str, whole: str) -> Iterator[str]:
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise _no_host_list(whole)
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) < int(first):
            raise _no_host_list(whole)
        yield from (str(index).zfill(len(first)) for index in range(int(first), int(last) + 1))


def _no_host_list(text: str) -> ArgumentError:
    return ArgumentError(f"{text!r} is not a host list of Slurm", fix='leave it to srun, which writes "n[1-3],m5"')
