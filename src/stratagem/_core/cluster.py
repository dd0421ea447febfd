# SPDX-License-Identifier: Apache-2.0
"""The tasks of a synchronous job on several hosts, as an engine needs to know them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stratagem.errors import ArgumentError, DeviceError

__all__ = ["Cluster"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The tasks that train together, and which of them this process is.

    Attributes:
        tasks: Each task's name and address, such as ("worker:0", "host-a:2222"); the first is the chief.
        rank: This process's number among them.
        local_task: This task's number among those on its host.
        num_local_tasks: How many tasks share this host, and its devices.
        process: This process's number among those of its task.
    """

    tasks: tuple[tuple[str, str], ...]
    rank: int
    local_task: int = 0
    num_local_tasks: int = 1
    process: int = 0

    def __post_init__(self) -> None:
        _, port = self._split(self.tasks[0][1])
        if not port.isdigit():
            raise ArgumentError(
                f"the address {self.tasks[0][1]!r} of {self.name(0)} does not name a port", fix='"host-name:2222"'
            )

    def of_processes(self, count: int, process: int) -> Cluster:
        """The same cluster with `count` processes for each task, seen from one of this task's.

        Args:
            count: How many there are.
            process: This one's number among them.
        """
        if count == 1:
            return self
        tasks = tuple((f"{name} process {number}", address) for name, address in self.tasks for number in range(count))
        return replace(self, tasks=tasks, rank=self.rank * count + process, process=process)

    def devices_of_task(self, present: Sequence[str]) -> Sequence[str]:
        """Those of the host's devices that are this task's: tasks that share a host divide its accelerators.

        Raises:
            DeviceError: there are fewer GPUs than tasks.
        """
        if self.num_local_tasks == 1:
            return present
        share = len(present) // self.num_local_tasks
        if share:
            return present[self.local_task * share : (self.local_task + 1) * share]
        if not present[0].startswith("CPU"):
            raise DeviceError(
                f"{self.num_local_tasks} tasks share this host, which has {len(present)} devices: {', '.join(present)}",
                fix="start as many tasks on a host as it has GPUs, or fewer",
            )
        return present[:1]  # a CPU can be shared

    @property
    def world_size(self) -> int:
        """How many tasks there are."""
        return len(self.tasks)

    @property
    def chief(self) -> tuple[str, int]:
        """Host and port of the first task."""
        host, port = self._split(self.tasks[0][1])
        return host, int(port)

    @property
    def on_one_host(self) -> bool:
        """Whether all tasks have addresses of the same host, or their launcher says that all are here."""
        addresses = {address for _, address in self.tasks}
        return len({self._split(address)[0] for address in addresses}) == 1 or len(addresses) == self.num_local_tasks

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
