# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job find each other: all are there, or an error says who is not, before jax is told.

In a job that a launcher started they meet in the job's folder; the tasks of a cluster meet at the first one's address.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator

from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.errors import CollectiveTimeoutError, JobMismatchError

__all__ = ["meet_at_address", "meet_in_folder"]

_POLL_SECONDS = 0.01
_RETRY_SECONDS = 0.1
_SILENCE_SECONDS = 2.0  # of one that connects and then says nothing, as port scanners do
_SAME_SCOPE = "make every process of the job make the same strategy and use it"


@contextlib.contextmanager
def meet_in_folder(job: env.Job, timeout_seconds: float) -> Iterator[str]:
    """Where jax's coordinator of a job on this host is to listen; the port is kept free of others in the block.

    Raises:
        CollectiveTimeoutError: a process did not come in time.
    """
    with contextlib.ExitStack() as kept:
        if job.rank == 0:
            _write(job, "coordinator", kept.enter_context(_reserved_address()))
        _write(job, f"arrived-{job.rank}", "")
        deadline = time.monotonic() + timeout_seconds
        while missing := [rank for rank in range(job.world_size) if not (job.directory / f"arrived-{rank}").exists()]:
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"process {job.rank} waited {timeout_seconds:g} seconds for process "
                    f"{', '.join(map(str, missing))} of {job.world_size} to make its strategy",
                    fix=_SAME_SCOPE,
                )
            time.sleep(_POLL_SECONDS)
        yield (job.directory / "coordinator").read_text()


def meet_at_address(cluster: Cluster, timeout_seconds: float) -> None:
    """Return once all tasks of `cluster` are there; the first one listens at its address until then.

    Raises:
        CollectiveTimeoutError: a task did not come in time.
        JobMismatchError: two processes say that they are the same task.
    """
    if cluster.rank == 0:
        _receive(cluster, timeout_seconds)
    else:
        _call(cluster, timeout_seconds)


def _receive(cluster: Cluster, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    host, port = cluster.chief
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("", port), backlog=cluster.world_size))
        came: dict[int, socket.socket] = {}
        while missing := [rank for rank in range(1, cluster.world_size) if rank not in came]:
            listener.settimeout(max(_POLL_SECONDS, deadline - time.monotonic()))
            try:
                peer = opened.enter_context(listener.accept()[0])
                peer.settimeout(_SILENCE_SECONDS)
                rank = int(peer.makefile().readline() or -1)
            except (TimeoutError, ValueError):
                if time.monotonic() < deadline:
                    continue
                text = f"waited {timeout_seconds:g} seconds for {cluster.names(missing)}"
                _answer(came.values(), f"{cluster.name(0)} {text}")
                raise CollectiveTimeoutError(
                    f"{cluster.name(0)} {text} to connect to {host}:{port}",
                    fix=f"start them with the same TF_CONFIG, and let them reach port {port} of {host}",
                ) from None
            if rank in came:
                _answer([peer], f"{cluster.name(rank)} is there already")
            elif rank in missing:
                came[rank] = peer
        _answer(came.values(), "")


def _call(cluster: Cluster, timeout_seconds: float) -> None:
    host, port = cluster.chief
    deadline = time.monotonic() + timeout_seconds
    late = CollectiveTimeoutError(
        f"{cluster.name(cluster.rank)} waited {timeout_seconds:g} seconds for {cluster.name(0)} at {host}:{port}",
        fix=f"start {cluster.name(0)} with the same TF_CONFIG, and let this host reach port {port} of {host}",
    )
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise late
        try:
            with socket.create_connection((host, port), timeout=left) as chief:
                chief.sendall(f"{cluster.rank}\n".encode())
                answer = chief.makefile().readline()
        except TimeoutError:
            raise late from None
        except OSError:
            answer = ""
        if answer.strip():
            raise JobMismatchError(answer.strip(), fix="start each task of TF_CONFIG once, within the time limit")
        if answer:
            return
        time.sleep(_RETRY_SECONDS)  # it does not listen yet, or was not a task of ours


def _answer(peers: Iterable[socket.socket], problem: str) -> None:
    for peer in peers:
        with contextlib.suppress(OSError):  # it has gone
            peer.sendall(f"{problem}\n".encode())


@contextlib.contextmanager
def _reserved_address() -> Iterator[str]:
    """An address of this host that nobody else is given while the block lasts, and that gRPC can listen at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{keeper.getsockname()[1]}"


def _write(job: env.Job, name: str, text: str) -> None:
    """Let a file appear with all of its text."""
    unfinished = job.directory / f".{name}-{job.rank}"
    unfinished.write_text(text)
    unfinished.rename(job.directory / name)
