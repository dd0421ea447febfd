# SPDX-License-Identifier: Apache-2.0
"""Addresses such as "host-a:2222": their parts, what their names stand for, and which are this host's."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence

__all__ = ["is_local", "is_loopback", "outward_ip", "resolve", "split"]


def split(address: str) -> tuple[str, int | None]:
    """The host and the port of an address; the port is None where it names none.

    >>> split("host-a:2222"), split("[::1]:80"), split("host-a")
    (('host-a', 2222), ('::1', 80), ('host-a', None))
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        return (address if not colon else host).strip("[]"), None
    return host.strip("[]"), int(port)


def resolve(host: str) -> list[str]:
    """The IP addresses that a name stands for; none where nobody knows it.

    >>> resolve("127.0.0.1")
    ['127.0.0.1']
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a label of more than 63 letters is the latter
        return []
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def is_local(ip: str) -> bool:
    """Whether `ip` is an address of this host: one can be bound to it."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.ENODEV):
            return False
        raise
    return True


def is_loopback(ips: Iterable[str]) -> bool:
    """Whether these addresses, of which there is at least one, lead to this host only."""
    found = [ipaddress.ip_address(ip.partition("%")[0]) for ip in ips]
    return bool(found) and all(ip.is_loopback for ip in found)


def outward_ip(own: Sequence[str], others: Iterable[str]) -> str:
    """The address of this host that the others see, or "" where there is none.

    Args:
        own: What the name in this host's own address stands for here: on many systems its loopback.
        others: The names in the others' addresses.

    >>> outward_ip(["127.0.1.1"], ["127.0.0.1"])
    '127.0.0.1'
    """
    if own and not is_loopback(own[:1]):
        return own[0]
    for ip in (ip for host in others for ip in resolve(host)):
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            with contextlib.suppress(OSError):  # there is no route to that one
                probe.connect((ip, 9))  # sends nothing, and chooses the address to send from
                return str(probe.getsockname()[0])
    return own[0] if own else ""
