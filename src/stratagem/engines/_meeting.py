# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job find each other: all are there, or an error says who is not, before the framework is told.

In a job that a launcher started they meet in the job's folder; the tasks of a cluster meet at the first one's address.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator

from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.errors import CollectiveTimeoutError, JobMismatchError, LaunchError

__all__ = ["meet_at_address", "meet_in_folder"]

_logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.01
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 2.0  # before this process says that it waits
_REPEAT_SECONDS = 30.0
_RETRY_SECONDS = 0.1
_TRY_SECONDS = 5.0
_PORT_SECONDS = 8.0  # a run that was ended a moment ago, its coordination service above all, may still listen there
_ANSWER = "stratagem:"  # how the first task's answers begin; what else listens at its port says something else
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


def meet_at_address(cluster: Cluster, timeout_seconds: float) -> str:
    """Wait until all tasks of `cluster` are there; the first one listens at its address until then.

    Returns:
        The address by which the others reach this host.

    Raises:
        CollectiveTimeoutError: a task did not come in time.
        JobMismatchError: two processes say that they are the same task, or do not agree on how many there are.
        LaunchError: the first task can't listen at its address.
    """
    with _Waiting(cluster, timeout_seconds) as waiting:
        return _receive(cluster, waiting) if cluster.rank == 0 else _call(cluster, waiting)


class _Waiting:
    """Says for whom this process waits, from time to time, and when it has waited too long."""

    def __init__(self, cluster: Cluster, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._cluster = cluster
        self._deadline = time.monotonic() + timeout_seconds
        self._say_at = time.monotonic() + _PATIENCE_SECONDS
        self._said = False

    def __enter__(self) -> _Waiting:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if self._said and kind is None:
            _logger.warning("%s: all %d are there", self._cluster.name(self._cluster.rank), self._cluster.world_size)

    @property
    def left_seconds(self) -> float:
        """How long it goes on waiting."""
        return self._deadline - time.monotonic()

    def say(self, whom: str) -> None:
        """This process still waits, for `whom`."""
        if time.monotonic() < self._say_at:
            return
        self._say_at, self._said = time.monotonic() + _REPEAT_SECONDS, True
        _logger.warning(
            "%s waits for %s, for %.0f seconds more", self._cluster.name(self._cluster.rank), whom, self.left_seconds
        )


def _receive(cluster: Cluster, waiting: _Waiting) -> str:
    host, port = cluster.chief
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(_listener(cluster, waiting))
        came: dict[int, socket.socket] = {}
        while missing := [rank for rank in range(1, cluster.world_size) if rank not in came]:
            waiting.say(cluster.names(missing))
            listener.settimeout(min(max(_POLL_SECONDS, waiting.left_seconds), _LOOK_SECONDS))
            try:
                peer = opened.enter_context(listener.accept()[0])
                peer.settimeout(_SILENCE_SECONDS)
                rank, world_size = map(int, peer.makefile(errors="replace").readline().split() or (-1, -1))
            except (TimeoutError, ValueError):
                if waiting.left_seconds > 0:
                    continue
                text = f"waited {waiting.timeout_seconds:g} seconds for {cluster.names(missing)}"
                _answer(came.values(), f"{cluster.name(0)} {text}")
                raise CollectiveTimeoutError(
                    f"{cluster.name(0)} {text} to connect to {host}:{port}",
                    fix=f"start them with the same TF_CONFIG, and let them reach port {port} of {host}",
                ) from None
            if rank in came:
                _answer([peer], f"{cluster.name(rank)} is there already")
            elif rank > 0 and world_size != cluster.world_size:
                text = f"one process counts {world_size} of them in the job, {cluster.name(0)} {cluster.world_size}"
                _answer([peer, *came.values()], text)
                raise JobMismatchError(text, fix="give all tasks the same TF_CONFIG and as many devices")
            elif rank in missing:
                came[rank] = peer
        _answer(came.values(), "")
        mine = {peer.getsockname()[0] for peer in came.values()}
    # The way to those on this host is one that the others can't go.
    return max(mine, key=lambda address: not address.startswith("127."))


def _listener(cluster: Cluster, waiting: _Waiting) -> socket.socket:
    host, port = cluster.chief
    deadline = time.monotonic() + min(_PORT_SECONDS, waiting.left_seconds)
    while True:
        try:
            return socket.create_server(("", port), backlog=cluster.world_size)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise LaunchError(
                    f"{cluster.name(0)} can't listen at {host}:{port}: {os.strerror(error.errno or 0)}",
                    fix=f"end the program that uses port {port} (ss -ltnp shows it), or give the task another port",
                ) from error
        waiting.say(f"whoever still uses port {port} of {host}")
        time.sleep(_RETRY_SECONDS)


def _call(cluster: Cluster, waiting: _Waiting) -> str:
    host, port = cluster.chief
    last = ""
    while waiting.left_seconds > 0:
        waiting.say(f"{cluster.name(0)} at {host}:{port}")
        try:
            with socket.create_connection((host, port), timeout=min(_TRY_SECONDS, waiting.left_seconds)) as chief:
                chief.settimeout(max(_POLL_SECONDS, waiting.left_seconds))
                mine = chief.getsockname()[0]
                chief.sendall(f"{cluster.rank} {cluster.world_size}\n".encode())
                answer = chief.makefile(errors="replace").readline()
        except OSError as error:
            last, answer, mine = _reason(error), "", ""
        if answer.startswith(_ANSWER):
            if problem := answer.removeprefix(_ANSWER).strip():
                raise JobMismatchError(problem, fix="start each task of TF_CONFIG once, within the time limit")
            return mine
        if answer:
            last = ": something else listens there"
        time.sleep(_RETRY_SECONDS)  # it does not listen yet, or was not a task of ours
    raise CollectiveTimeoutError(
        f"{cluster.name(cluster.rank)} waited {waiting.timeout_seconds:g} seconds for {cluster.name(0)} at "
        f"{host}:{port}{last}",
        fix=f"start {cluster.name(0)} with the same TF_CONFIG, and let this host reach port {port} of {host}",
    )


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return ": its name is not known here"
    if isinstance(error, ConnectionRefusedError):
        return ": nobody listens there"
    return f": {error.strerror}" if error.strerror else ""


def _answer(peers: Iterable[socket.socket], problem: str) -> None:
    for peer in peers:
        with contextlib.suppress(OSError):  # it has gone
            peer.sendall(f"{_ANSWER}{problem}\n".encode())


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
