# SPDX-License-Identifier: Apache-2.0
"""Addresses of tasks, put together and taken apart."""

from __future__ import annotations

from stratagem.errors import ArgumentError

__all__ = ["MAX_PORT", "host_and_port", "join", "with_protocol"]

MAX_PORT = 65535


def with_protocol(address: str, rpc_layer: str | None) -> str:
    """The address as TensorFlow writes it: "grpc://host:2222".

    >>> with_protocol("host:2222", "grpc"), with_protocol("host:2222", None)
    ('grpc://host:2222', 'host:2222')
    """
    return f"{rpc_layer}://{address}" if rpc_layer else address


def join(host: str, port: int) -> str:
    """An address out of its two parts, with brackets around the colons of IPv6.

    >>> join("::1", 2222)
    '[::1]:2222'
    """
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_and_port(address: str, what: str) -> tuple[str, int]:
    """The two parts of an address.

    Args:
        address: Such as "host:2222".
        what: Where it stands, for the error.

    Raises:
        ArgumentError: it names no host or no port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise ArgumentError(f"{what}={address!r} does not name a host and a port", fix=f'{what}="host-name:2222"')
    return host.strip("[]"), int(port)
