# SPDX-License-Identifier: Apache-2.0
"""How the replicas' processes find each other, and leave."""

from __future__ import annotations

import datetime
import json
import logging
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from stratagem import launch
from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem._core.options import CommunicationImplementation, CommunicationOptions
from stratagem.engines import _meeting, _network
from stratagem.engines._folder_store import FolderStore
from stratagem.engines._pulse import Pulse
from stratagem.engines.torch import _segment
from stratagem.engines.torch._board import Board
from stratagem.engines.torch._devices import torch_device
from stratagem.engines.torch._process_group import ProcessGroupTransport
from stratagem.engines.torch._random_state import share_random_state
from stratagem.engines.torch._shared_memory import SharedMemoryTransport
from stratagem.engines.torch._tcp_store import TcpStore
from stratagem.engines.torch._transport import Transport
from stratagem.engines.torch._waiting import wait_until
from stratagem.errors import ArgumentError, CollectiveTimeoutError, JobMismatchError

_logger = logging.getLogger(__name__)

_LEAVING_SECONDS = 5.0
_NOTICE_SECONDS = 1.0  # for the others to hear that this program failed


@dataclass(frozen=True)
class Connection:
    """A replica's place in its job.

    Attributes:
        transport: What carries its collectives.
        pulse: What it hears of the others.
        keeps_store: The others' pulse ends with this process.
    """

    transport: Transport
    pulse: Pulse
    keeps_store: bool = False


def connect(job: env.Job, devices: Sequence[str], options: CommunicationOptions) -> Connection:
    """Meet the other processes of `job`; replica i computes on `devices[i]`.

    Raises:
        CollectiveTimeoutError: a process did not come in time.
        JobMismatchError: the processes do not agree on the devices.
    """
    timeout_seconds = env.collective_timeout_seconds()
    store = dist.FileStore(str(job.directory / "store"), job.world_size)
    store.set_timeout(datetime.timedelta(seconds=timeout_seconds))
    _meet(store, job, devices, timeout_seconds)
    pulse = Pulse(
        FolderStore(job.directory),
        job.rank,
        [f"replica {rank}" for rank in range(job.world_size)],
        failure_timeout_seconds=env.failure_timeout_seconds(),
        ends_program=False,
    )
    pulse.start()
    device = torch_device(devices[job.rank])
    _init_group(store, job.rank, job.world_size, device, timeout_seconds)
    transport = _transport(store, job, devices, pulse, timeout_seconds, options)
    return _connected(transport, pulse, options)


def connect_cluster(cluster: Cluster, device: torch.device, options: CommunicationOptions) -> Connection:
    """Meet the other tasks of `cluster`; this one computes on `device`.

    Raises:
        CollectiveTimeoutError: a task did not come in time.
        JobMismatchError: the tasks do not agree on the job.
        LaunchError: the first task can't listen at its address.
    """
    timeout_seconds, failure_seconds = env.collective_timeout_seconds(), env.failure_timeout_seconds()
    address = _meeting.meet_at_address(cluster, timeout_seconds)
    host, port = cluster.chief
    limit = datetime.timedelta(seconds=timeout_seconds)
    chief = cluster.rank == 0
    store = dist.TCPStore(host, port, cluster.world_size, chief, timeout=limit, wait_for_workers=False)
    pulse = Pulse(
        TcpStore(store, failure_seconds / 2),
        cluster.rank,
        [cluster.names([rank]) for rank in range(cluster.world_size)],
        failure_timeout_seconds=failure_seconds,
        kept_by_first=True,
    )
    pulse.start()
    with launch.variable_unless_set("GLOO_SOCKET_IFNAME", _network.interface_of(address)):
        control = _init_group(store, cluster.rank, cluster.world_size, device, timeout_seconds)
        data = _data_group(control, {device.type}, options, limit)
    near = cluster.on_one_host and device.type == "cpu" and _may_share_memory(options)
    if (board := _shared_board(store, cluster, pulse, timeout_seconds) if near else None) is not None:
        return _connected(SharedMemoryTransport(board, store), pulse, options, keeps_store=chief)
    transport = ProcessGroupTransport(control, data, device, store, pulse, timeout_seconds, far=True)
    return _connected(transport, pulse, options, keeps_store=chief)


def _may_share_memory(options: CommunicationOptions) -> bool:
    ring = options.implementation is CommunicationImplementation.RING
    return not ring and env.transport() != "process_group" and _segment.supported()


def _shared_board(store: dist.Store, cluster: Cluster, pulse: Pulse, timeout_seconds: float) -> Board | None:
    """The board of tasks that can open each other's memory; None where one can't, as in containers of their own."""
    if cluster.rank == 0:
        board: Board | None = Board.create(0, cluster.world_size, timeout_seconds, pulse)
        mark = secrets.randbits(62)
        board.mark(mark)
        store.set("board", f"{mark} {board.segment.handle}")
    else:
        mark, _, text = store.get("board").decode().partition(" ")
        handle = _segment.Handle.parse(text)
        board = Board.open_marked(int(mark), handle, cluster.rank, cluster.world_size, timeout_seconds, pulse)
    store.set(f"board/{cluster.rank}", "opened" if board is not None else "")
    all_opened = all(store.get(f"board/{rank}") for rank in range(cluster.world_size))
    return board if all_opened else None


def _connected(
    transport: Transport, pulse: Pulse, options: CommunicationOptions, *, keeps_store: bool = False
) -> Connection:
    transport.bucket_bytes = options.bytes_per_pack or transport.bucket_bytes
    share_random_state(transport)
    return Connection(transport, pulse, keeps_store=keeps_store)


def disconnect(connection: Connection) -> None:
    """Leave the job."""
    # Set by the interpreter when it ends because of an exception that nobody caught.
    failed = getattr(sys, "last_value", None) is not None
    connection.transport.close(failed=failed)
    connection.pulse.close(failed=failed)
    if connection.keeps_store:
        connection.pulse.wait_for_the_others(_NOTICE_SECONDS if failed else _LEAVING_SECONDS)
    if dist.is_initialized():
        dist.destroy_process_group()


def _init_group(
    store: dist.Store, rank: int, world_size: int, device: torch.device, timeout_seconds: float
) -> dist.ProcessGroup:
    """The gloo group of all processes."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _same_excepthook():
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_seconds),
        )
    group = dist.group.WORLD
    assert group is not None, "initialised above"
    return group


@contextmanager
def _same_excepthook() -> Iterator[None]:
    # torch's own would put its rank before each line of a traceback, where the launcher has put ours.
    excepthook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = excepthook


def _data_group(
    control: dist.ProcessGroup, kinds: set[str], options: CommunicationOptions, timeout: datetime.timedelta
) -> dist.ProcessGroup:
    """The group for tensors: NCCL's between GPUs, unless gloo's rings are asked for."""
    wish = options.implementation
    if kinds == {"cpu"}:
        if wish is CommunicationImplementation.NCCL:
            _logger.warning("CommunicationImplementation.NCCL reduces between GPUs only; gloo carries the collectives")
        return control
    if wish is CommunicationImplementation.RING:
        return control
    group = dist.new_group(backend="nccl", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup), "this process is in the group"
    return group


def _meet(store: dist.Store, job: env.Job, devices: Sequence[str], timeout_seconds: float) -> None:
    store.set(f"arrived/{job.rank}", json.dumps(list(devices)))

    def missing() -> list[int]:
        return [rank for rank in range(job.world_size) if not store.check([f"arrived/{rank}"])]

    wait_until(
        lambda: not missing(),
        timeout_seconds=timeout_seconds,
        on_stall=lambda: None,
        on_timeout=lambda seconds: CollectiveTimeoutError(
            f"replica {job.rank} waited {seconds:g} seconds for replica {', '.join(map(str, missing()))} "
            f"of {job.world_size} to enter its strategy's scope",
            fix="make every process of the job make the same strategy and use it",
        ),
    )
    for rank in range(job.world_size):
        theirs = json.loads(store.get(f"arrived/{rank}"))
        if theirs != list(devices):
            raise JobMismatchError(
                f"replica {job.rank} uses the devices {list(devices)}, but replica {rank} uses {theirs}",
                fix="give the strategy the same devices in every process",
            )


def _transport(
    store: dist.Store,
    job: env.Job,
    devices: Sequence[str],
    pulse: Pulse,
    timeout_seconds: float,
    options: CommunicationOptions,
) -> Transport:
    kinds = {torch_device(device).type for device in devices}
    wish = env.transport()
    if kinds == {"cpu"} and wish != "process_group" and _segment.supported():
        if job.rank == 0:
            board = Board.create(0, job.world_size, timeout_seconds, pulse)
            store.set("board", str(board.segment.handle))
        else:
            handle = _segment.Handle.parse(store.get("board").decode())
            board = Board.open(handle, job.rank, job.world_size, timeout_seconds, pulse)
        return SharedMemoryTransport(board, store)
    if wish == "shared_memory":
        raise ArgumentError(
            f"{env.TRANSPORT}=shared_memory needs CPU devices on x86-64 Linux; the devices are {list(devices)}",
            fix=f"unset {env.TRANSPORT}",
        )
    control = dist.group.WORLD
    assert isinstance(control, dist.ProcessGroup), "initialised by connect"
    data = _data_group(control, kinds, options, datetime.timedelta(seconds=timeout_seconds))
    return ProcessGroupTransport(control, data, torch_device(devices[job.rank]), store, pulse, timeout_seconds)
