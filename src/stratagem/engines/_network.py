# SPDX-License-Identifier: Apache-2.0
"""The network interfaces of this host."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["interface_of"]

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16


def interface_of(address: str) -> str:
    """The interface that has an IPv4 address, or "" where none has it or it can't be told.

    Args:
        address: Such as "10.0.0.2".
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
