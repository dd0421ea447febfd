# SPDX-License-Identifier: Apache-2.0
"""Ports: listening at this worker's, who has it if it is taken, and why a call to another's failed."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from stratagem.doctor._report import Call

__all__ = ["FAILURES", "FAILURES_OF_ABSENT", "how_it_failed", "listen", "owner_of"]

# How a call to one that listens failed, and what that tells.
FAILURES = {
    "refused": "refused: a firewall rejects, or the address leads elsewhere",
    "no route": "no route to the host, or a firewall rejects",
    "timed out": "timed out: a firewall drops the packets",
    "unresolved": "the name does not resolve",
    "stranger": "something answers that is no doctor of the same release",
    "failed": "the call failed",
}
# The same of one of which nothing is known.
FAILURES_OF_ABSENT = {
    **FAILURES,
    "refused": "refused: nothing listens there, or a firewall rejects",
    "timed out": "timed out: a firewall drops the packets, or the host is down",
}
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.EINVAL)
_PROC = Path("/proc")
_LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp


def how_it_failed(error: Exception) -> Call:
    """The call that `error` ended.

    >>> how_it_failed(ConnectionRefusedError(111, "Connection refused")).how
    'refused'
    """
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return Call(how="unresolved", detail=str(error))
    if isinstance(error, ConnectionRefusedError):
        return Call(how="refused", detail=str(error))
    if isinstance(error, TimeoutError):  # ours, or the kernel's ETIMEDOUT
        return Call(how="timed out", detail=str(error))
    if isinstance(error, OSError) and error.errno in _NO_ROUTE:
        return Call(how="no route", detail=str(error))
    return Call(how="failed", detail=str(error))


def listen(port: int) -> socket.socket:
    """Listen at a port of all this host's addresses.

    Raises:
        OSError: another process has it, or it needs privileges.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # IPv6 is turned off
                raise
    return socket.create_server(("", port), backlog=128)


def owner_of(port: int) -> str | None:
    """The process that listens at `port`, for people; None where /proc does not tell."""
    inodes = set(_listening_inodes(port))
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if any(_inode(descriptor) in inodes for descriptor in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_text().replace("\0", " ").strip()
                return f"process {folder.name} ({words:.80})" if words else f"process {folder.name}"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        path = _PROC / "net" / table
        rows = path.read_text().splitlines()[1:] if path.exists() else []
        for cells in map(str.split, rows):
            if cells[3] == _LISTENS and int(cells[1].rpartition(":")[2], 16) == port:
                yield cells[9]


def _inode(descriptor: Path) -> str | None:
    with contextlib.suppress(OSError):
        target = str(descriptor.readlink())
        if target.startswith("socket:["):
            return target[len("socket:[") : -1]
    return None
