# SPDX-License-Identifier: Apache-2.0
"""What a job is made of, decided before anything starts; nothing here touches the machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratagem._core import env
from stratagem.errors import ArgumentError, DeviceError

THREADS = "OMP_NUM_THREADS"
UNBUFFERED = "PYTHONUNBUFFERED"


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One process of a job.

    Attributes:
        rank: Its number in the job.
        argv: Its command line.
        variables: What it gets on top of the launcher's environment; the job's folder comes at the start.
    """

    rank: int
    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All processes of a job; `print` it to see what would start.

    Attributes:
        processes: By rank.
        directory: The folder to start in, or None for the launcher's own.
        noun: What people call one of the processes: "replica", "process" where one can hold several replicas, "worker"
            where each is a task of a cluster.
        world_size: How many there are in all, where others run on other hosts; 0 if these are all.
    """

    processes: tuple[ProcessPlan, ...]
    directory: str | None = None
    noun: str = "replica"
    world_size: int = 0

    @property
    def count(self) -> int:
        """How many processes the job has, with those of other hosts."""
        return self.world_size or len(self.processes)

    def __str__(self) -> str:
        here = len(self.processes)
        lines = [f"{here} process{'es' if here > 1 else ''}"]
        if self.directory is not None:
            lines.append(f"in {self.directory}")
        for process in self.processes:
            words = [f"{name}={shlex.quote(value)}" for name, value in process.variables]
            lines.append(f"[{self.noun} {process.rank}/{self.count}] {' '.join(words)} {shlex.join(process.argv)}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How many processes a job has, and on what.

    Attributes:
        num_processes: One a replica (torch); one a host (jax), or several that share its devices.
        num_replicas: How many replicas were asked for, or None if the program decides.
        cpu_devices: How many logical CPU devices the processes see, or None to leave what the environment says.
        on_cpu: Whether the replicas compute on CPU cores, which they then have to share.
        noun: See `Plan`.
    """

    num_processes: int
    num_replicas: int | None
    cpu_devices: int | None
    on_cpu: bool
    noun: str = "replica"


def place(
    *,
    replicas: int | None,
    cpu_devices: int | None,
    backend: str,
    environ: Mapping[str, str],
    gpus: int,
    processes: int | None = None,
) -> Placement:
    """Decide how many processes to start.

    Args:
        replicas: How many replicas were asked for.
        cpu_devices: How many logical CPU devices were asked for; the replicas then run on them.
        backend: "torch" or "jax".
        environ: The environment that the processes inherit; STRATAGEM_CPU_DEVICES in it is a wish as well.
        gpus: How many GPUs this host has.
        processes: How many processes were asked for.

    Raises:
        ArgumentError: a number below 1, or processes that don't fit the backend.
        DeviceError: more replicas than devices, or devices that can't be divided among the processes.
    """
    for name, value in (("replicas", replicas), ("cpu devices", cpu_devices), ("processes", processes)):
        if value is not None and value < 1:
            raise ArgumentError(f"{value} {name} were asked for, which is less than 1", fix="ask for 1 or more")
    on_cpu = gpus == 0 or (cpu_devices or env.cpu_devices(environ)) is not None
    present = (cpu_devices or replicas or env.cpu_devices(environ)) if on_cpu else gpus
    if replicas is not None and present is not None and replicas > present:
        kind = "logical CPU devices" if on_cpu else "GPUs"
        raise DeviceError(
            f"{replicas} replicas were asked for, but this host has {present} {kind if present > 1 else kind[:-1]}",
            fix=f"ask for {present} replicas or fewer, or start them on CPU devices with: --cpu-devices {replicas}",
        )
    if backend == "jax":
        return _placed_together(replicas, present, processes or 1, on_cpu=on_cpu)
    num_replicas = replicas or present or 1
    if processes not in (None, num_replicas):
        raise ArgumentError(
            f"{processes} processes were asked for, but with {backend} each of the {num_replicas} replicas is one",
            fix=f"leave the number of processes out, or ask for {processes} replicas",
        )
    return Placement(
        num_processes=num_replicas, num_replicas=replicas, cpu_devices=present if on_cpu else None, on_cpu=on_cpu
    )


def _placed_together(replicas: int | None, present: int | None, processes: int, *, on_cpu: bool) -> Placement:
    """Several replicas a process, as many in each; a single process may find out by itself what there is."""
    used = replicas or present or processes
    if used % processes:
        raise DeviceError(
            f"{used} devices can't be divided among {processes} processes",
            fix=f"ask for {processes * max(1, used // processes)} devices, or for another number of processes",
        )
    return Placement(
        num_processes=processes,
        num_replicas=replicas,
        # Those that are left over belong to no process of several.
        cpu_devices=(present if processes == 1 else used) if on_cpu else None,
        on_cpu=on_cpu,
        noun="process",
    )


def add_unbuffered(variables: dict[str, str], environ: Mapping[str, str]) -> None:
    """Let a process write at once: to a pipe Python would keep its output back until a buffer is full."""
    if not environ.get(UNBUFFERED):
        variables.setdefault(UNBUFFERED, "1")


def plan(
    argv: Sequence[str],
    placement: Placement,
    *,
    variables: Mapping[str, str] | None = None,
    environ: Mapping[str, str],
    cores: int,
    directory: str | None = None,
) -> Plan:
    """The processes that run `argv` once per process of `placement`.

    Args:
        argv: The command line of each.
        placement: How many, and on what.
        variables: More variables for each.
        environ: The environment that they inherit; what a user set there is kept.
        cores: How many cores they share.
        directory: The folder to start in.
    """
    count = placement.num_processes
    shared = dict(variables or {})
    if placement.num_replicas is not None:
        shared[env.REPLICAS] = str(placement.num_replicas)
    if placement.cpu_devices is not None:
        shared[env.CPU_DEVICES] = str(placement.cpu_devices)
    if placement.on_cpu and count > 1 and not environ.get(THREADS):
        shared.setdefault(THREADS, str(max(1, cores // count)))
    add_unbuffered(shared, environ)
    return Plan(
        processes=tuple(
            ProcessPlan(
                rank=rank,
                argv=tuple(argv),
                variables=((env.RANK, str(rank)), (env.WORLD_SIZE, str(count)), *sorted(shared.items())),
            )
            for rank in range(count)
        ),
        directory=directory,
        noun=placement.noun,
    )
