# SPDX-License-Identifier: Apache-2.0
"""The plan of a cluster: workers with a TF_CONFIG each, all on this host, or one of several hosts'."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from stratagem._core import env
from stratagem.errors import ArgumentError, DeviceError
from stratagem.launch._plan import THREADS, Plan, ProcessPlan, add_unbuffered

DEFAULT_PORT = 2222
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def plan_workers(
    argv: Sequence[str],
    ports: Sequence[int],
    *,
    cpu_devices: int | None,
    variables: Mapping[str, str],
    environ: Mapping[str, str],
    cores: int,
    gpus: int,
) -> Plan:
    """One worker on this host for each of `ports`, at which it listens.

    Args:
        argv: The command line of each.
        ports: Free ones.
        cpu_devices: How many logical CPU devices each sees; its replicas then run on them.
        variables: More variables for each.
        environ: The environment that they inherit; what a user set there is kept.
        cores: How many cores they share.
        gpus: How many GPUs this host has; they are divided among the workers.

    Raises:
        DeviceError: there are GPUs, but fewer than workers.
    """
    count = len(ports)
    on_cpu = gpus == 0 or (cpu_devices or env.cpu_devices(environ)) is not None
    if not on_cpu and gpus < count:
        raise DeviceError(
            f"{count} workers were asked for, but this host has {gpus} GPU{'s' if gpus > 1 else ''}",
            fix=f"ask for {gpus} workers or fewer, or start them on CPU devices with: --cpu-devices 1",
        )
    shared = _shared(variables, environ, cpu_devices)
    if on_cpu and not environ.get(THREADS):
        shared.setdefault(THREADS, str(max(1, cores // (count * (cpu_devices or 1)))))
    processes: list[ProcessPlan] = []
    for index in range(count):
        own = {**shared, env.TF_CONFIG: _tf_config([f"localhost:{port}" for port in ports], index)}
        if not on_cpu:
            own[_VISIBLE_GPUS] = ",".join(_gpus_of(index, count, gpus, environ))
        processes.append(ProcessPlan(rank=index, argv=tuple(argv), variables=tuple(sorted(own.items()))))
    return Plan(processes=tuple(processes), noun="worker")


def plan_task(
    argv: Sequence[str],
    hosts: Sequence[str],
    index: int,
    *,
    cpu_devices: int | None,
    variables: Mapping[str, str],
    environ: Mapping[str, str],
) -> Plan:
    """This host's worker of a cluster whose workers run on `hosts`.

    Args:
        argv: Its command line.
        hosts: "host" or "host:port" of each worker, in order.
        index: Which of them this is.
        cpu_devices: How many logical CPU devices it sees.
        variables: More variables.
        environ: The environment that it inherits.

    Raises:
        ArgumentError: there is no such worker, or a host is named twice.
    """
    if not 0 <= index < len(hosts):
        raise ArgumentError(
            f"there is no worker {index}; {len(hosts)} hosts were named",
            fix=f"--task-index 0 on {hosts[0]}, and so on" if hosts else "--hosts host-a,host-b",
        )
    addresses = [host if ":" in host else f"{host}:{DEFAULT_PORT}" for host in hosts]
    if len(set(addresses)) < len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise ArgumentError(f"{twice} is named twice", fix="give workers of one host ports of their own: host-a:2223")
    own = {**_shared(variables, environ, cpu_devices), env.TF_CONFIG: _tf_config(addresses, index)}
    process = ProcessPlan(rank=index, argv=tuple(argv), variables=tuple(sorted(own.items())))
    return Plan(processes=(process,), noun="worker", world_size=len(hosts))


def free_ports(count: int) -> list[int]:
    """Ports of this host that nobody listens at now."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _shared(variables: Mapping[str, str], environ: Mapping[str, str], cpu_devices: int | None) -> dict[str, str]:
    shared = dict(variables)
    if cpu_devices is not None:
        shared[env.CPU_DEVICES] = str(cpu_devices)
    add_unbuffered(shared, environ)
    return shared


def _tf_config(addresses: Sequence[str], index: int) -> str:
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}})


def _gpus_of(index: int, count: int, gpus: int, environ: Mapping[str, str]) -> list[str]:
    visible = environ.get(_VISIBLE_GPUS)
    names = [name.strip() for name in visible.split(",")] if visible else [str(number) for number in range(gpus)]
    share = gpus // count
    return names[index * share : (index + 1) * share]
