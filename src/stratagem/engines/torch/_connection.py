# SPDX-License-Identifier: Apache-2.0
"""How the replicas' processes find each other, and leave."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from stratagem._core import env
from stratagem.engines.torch import _segment
from stratagem.engines.torch._board import Board
from stratagem.engines.torch._devices import torch_device
from stratagem.engines.torch._notes import Notes
from stratagem.engines.torch._process_group import ProcessGroupTransport
from stratagem.engines.torch._random_state import share_random_state
from stratagem.engines.torch._shared_memory import SharedMemoryTransport
from stratagem.engines.torch._transport import Transport
from stratagem.engines.torch._waiting import wait_until
from stratagem.errors import ArgumentError, CollectiveTimeoutError, JobMismatchError


def connect(job: env.Job, devices: Sequence[str]) -> Transport:
    """Meet the other processes of `job`; replica i computes on `devices[i]`.

    Raises:
        CollectiveTimeoutError: a process did not come in time.
        JobMismatchError: the processes do not agree on the devices.
    """
    timeout_seconds = env.collective_timeout_seconds()
    store = dist.FileStore(str(job.directory / "store"), job.world_size)
    store.set_timeout(datetime.timedelta(seconds=timeout_seconds))
    _meet(store, job, devices, timeout_seconds)
    device = torch_device(devices[job.rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    excepthook = sys.excepthook
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("group", store),
        rank=job.rank,
        world_size=job.world_size,
        timeout=datetime.timedelta(seconds=timeout_seconds),
    )
    # torch's own would put its rank before each line of a traceback, where the launcher has put ours.
    sys.excepthook = excepthook
    transport = _transport(store, job, devices, timeout_seconds)
    share_random_state(transport)
    return transport


def disconnect(transport: Transport) -> None:
    """Leave the job."""
    # Set by the interpreter when it ends because of an exception that nobody caught.
    transport.close(failed=getattr(sys, "last_value", None) is not None)
    if dist.is_initialized():
        dist.destroy_process_group()


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


def _transport(store: dist.Store, job: env.Job, devices: Sequence[str], timeout_seconds: float) -> Transport:
    kinds = {torch_device(device).type for device in devices}
    wish = env.transport()
    if kinds == {"cpu"} and wish != "process_group" and _segment.supported():
        if job.rank == 0:
            board = Board.create(0, job.world_size, timeout_seconds)
            store.set("board", str(board.segment.handle))
        else:
            handle = _segment.Handle.parse(store.get("board").decode())
            board = Board.open(handle, job.rank, job.world_size, timeout_seconds)
        return SharedMemoryTransport(board, store)
    if wish == "shared_memory":
        raise ArgumentError(
            f"{env.TRANSPORT}=shared_memory needs CPU devices on x86-64 Linux; the devices are {list(devices)}",
            fix=f"unset {env.TRANSPORT}",
        )
    control = dist.group.WORLD
    assert control is not None, "initialised by connect"
    timeout = datetime.timedelta(seconds=timeout_seconds)
    data = control if kinds == {"cpu"} else dist.new_group(backend="nccl", timeout=timeout)
    assert isinstance(data, dist.ProcessGroup), "this process is in the group"
    notes = Notes(job.directory, job.rank)
    return ProcessGroupTransport(control, data, torch_device(devices[job.rank]), store, notes, timeout_seconds)
