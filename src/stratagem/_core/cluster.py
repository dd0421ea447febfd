# SPDX-License-Identifier: Apache-2.0
"""The tasks of a synchronous job on several hosts, as an engine needs to know them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratagem.errors import ArgumentError

__all__ = ["Cluster"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The tasks that train together, and which of them this process is.

    Attributes:
        tasks: Each task's name and address, such as ("worker:0", "host-a:2222"); the first is the chief.
        rank: This process's number among them.
    """

    tasks: tuple[tuple[str, str], ...]
    rank: int

    def __post_init__(self) -> None:
        _, port = self._split(self.tasks[0][1])
        if not port.isdigit():
            raise ArgumentError(
                f"the address {self.tasks[0][1]!r} of {self.name(0)} does not name a port", fix='"host-name:2222"'
            )

    @property
    def world_size(self) -> int:
        """How many tasks there are."""
        return len(self.tasks)

    @property
    def chief(self) -> tuple[str, int]:
        """Host and port of the first task."""
        host, port = self._split(self.tasks[0][1])
        return host, int(port)

    def name(self, rank: int) -> str:
        """A task's name, for people."""
        return f"/{self.tasks[rank][0]}"

    def names(self, ranks: Iterable[int]) -> str:
        """Several tasks' names, for people."""
        return ", ".join(f"{self.name(rank)} ({self.tasks[rank][1]})" for rank in ranks)

    @staticmethod
    def _split(address: str) -> tuple[str, str]:
        host, _, port = address.rpartition(":")
        return host.strip("[]"), port
