# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine, for tests: network namespaces with a router, and its firewall, between them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PORT = 2222  # of a namespace that nobody else is in
_IP = shutil.which("ip", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])) or ""
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Host:
    """A network namespace with an address of its own, behind the router."""

    namespace: str
    number: int

    @property
    def ip(self) -> str:
        return f"10.201.{self.number}.2"

    @property
    def address(self) -> str:
        return f"{self.ip}:{PORT}"

    def command(self, argv: Sequence[str], folder: Path, name_stands_for: str | None = None) -> list[str]:
        """`argv` as run on this host, whose name is host-N and stands for its address, or for another one."""
        hosts = folder / f"hosts-{self.number}"
        hosts.write_text(f"127.0.0.1 localhost\n{name_stands_for or self.ip} host-{self.number}\n")
        enter = f'mount --bind {hosts} /etc/hosts && hostname host-{self.number} && exec "$@"'
        inside = ["unshare", "--uts", "--mount", "sh", "-c", enter, "sh", *argv]
        return [_IP, "netns", "exec", self.namespace, *inside]


@dataclasses.dataclass(frozen=True)
class Network:
    """Hosts in subnets of their own and the router between them."""

    router: str
    hosts: tuple[Host, ...]

    def unplug(self, host: Host) -> None:
        """Nothing reaches `host` any more, and nobody is told."""
        _ip("-n", self.router, "link", "set", f"v{host.number}", "down")

    @contextlib.contextmanager
    def firewall(self, action: str, *, source: Host, target: Host) -> Iterator[None]:
        """The router drops ("blackhole") or rejects ("prohibit") what `source` sends to `target`'s port."""
        rule = f"from {source.ip} to {target.ip} ipproto tcp dport {PORT} {action}".split()
        _ip("-n", self.router, "rule", "add", *rule)
        try:
            yield
        finally:
            _ip("-n", self.router, "rule", "del", *rule)


@contextlib.contextmanager
def three_hosts() -> Iterator[Network]:
    """Three hosts; gone afterwards, whatever happened."""
    if not _IP or not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("network namespaces need ip, unshare and root")
    name = f"sd{os.getpid()}-{next(_numbers)}"
    hosts = tuple(Host(f"{name}-{number}", number) for number in (1, 2, 3))
    names = [f"{name}-r", *(host.namespace for host in hosts)]
    try:
        try:
            for namespace in names:
                _ip("netns", "add", namespace)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system gives no network namespaces: {error.stderr}")
        for host in hosts:
            _connect(host, names[0])
        _ip("netns", "exec", names[0], "sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield Network(names[0], hosts)
    finally:
        for namespace in names:
            subprocess.run([_IP, "netns", "del", namespace], capture_output=True, check=False, timeout=20)


def _connect(host: Host, router: str) -> None:
    end, inside = f"v{host.number}", host.namespace
    _ip("-n", router, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", inside)
    _ip("-n", router, "addr", "add", f"10.201.{host.number}.1/24", "dev", end)
    _ip("-n", router, "link", "set", end, "up")
    _ip("-n", inside, "addr", "add", f"{host.ip}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", inside, "link", "set", device, "up")
    # No default route, so that a look-up of a name fails at once.
    _ip("-n", inside, "route", "add", "10.201.0.0/16", "via", f"10.201.{host.number}.1")


def _ip(*arguments: str) -> None:
    subprocess.run([_IP, *arguments], check=True, capture_output=True, text=True, timeout=20)
