# SPDX-License-Identifier: Apache-2.0
"""The other processes of a job: joining them through `jax.distributed`, and what they tell each other by words.

Tensors travel in XLA's collectives, which neither check anything nor know whom they wait for. So before each one the
processes exchange what they are about to do, through the key-value store of jax's coordination service.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import distributed  # the store has no public name

from stratagem import launch
from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.engines import _lost
from stratagem.engines.jax import _meeting
from stratagem.errors import ContextError, ReplicaFailedError, StratagemError

__all__ = ["Peers", "join"]

_HEARTBEAT_SECONDS = 30
_LOOK_SECONDS = 0.2
_DEATH_SECONDS = 2.0
_NOTICE_SECONDS = 1.0  # for the others to learn that this one failed, as the store may go with it
_LATE = "DEADLINE_EXCEEDED"


@dataclass(frozen=True)
class _Said:
    """What a process says in one exchange: what it is doing, and more."""

    doing: str
    more: Any


class Peers:
    """This process's place among those of its job.

    Args:
        rank: This process's number.
        world_size: How many processes there are.
        on_one_host: Whether they all run on this host.
        timeout_seconds: The longest that one waits for another.
    """

    def __init__(self, rank: int, world_size: int, *, on_one_host: bool, timeout_seconds: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.noun = "process"
        self._timeout_seconds = timeout_seconds
        self._store: Any = distributed.global_state.client
        self._number = 0
        self._last = ["the start"] * world_size
        self._pids: list[int] = []
        # Runs before jax's own, which waits for all the others.
        atexit.register(self._leave)
        pids = self.exchange("joining the job", os.getpid())
        if on_one_host:
            self._pids = pids

    def exchange(self, doing: str, mine: Any = None) -> list[Any]:
        """What each process says, by rank; `doing` names the call in errors.

        Raises:
            CollectiveTimeoutError: a process did not come in time.
            ReplicaFailedError: a process died, or its program failed.
            CollectiveMismatchError: the program of a process has ended.
        """
        number = self._number
        self._number += 1
        with self.naming_the_lost(doing):
            self._store.key_value_set_bytes(_key(number, self.rank), pickle.dumps(_Said(doing, mine)))
        deadline = time.monotonic() + self._timeout_seconds
        said: list[_Said] = [pickle.loads(self._wait(number, rank, doing, deadline)) for rank in range(self.world_size)]
        if number >= 2:
            # Whoever has come here has seen all of the exchange before, so nobody reads the one before that any more.
            self._store.key_value_delete(_key(number - 2, self.rank))
        self._last = [one.doing for one in said]
        return [one.more for one in said]

    def post(self, notice: str) -> None:
        """Let `wait_for` return in the other processes, now and later."""
        self._store.key_value_set_bytes(_notice(notice), b"")

    def wait_for(self, notice: str, rank: int, what: str) -> None:
        """Return once process `rank` has posted `notice`.

        Raises:
            CollectiveTimeoutError: it did not in time.
            ReplicaFailedError: it died, or its program failed.
            CollectiveMismatchError: its program has ended.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while self._look(_notice(notice)) is None:
            if (gone := self._gone(rank, what)) is not None:
                raise gone
            if time.monotonic() > deadline:
                missing = {rank: f"somewhere after {self._last[rank]}"}
                raise _lost.late(missing, self.world_size, self.rank, what, self._timeout_seconds, self.noun)
            time.sleep(_LOOK_SECONDS / 10)

    @contextlib.contextmanager
    def naming_the_lost(self, what: str) -> Iterator[None]:
        """Raise an error of jax's in the block as one that says which process was lost, as far as can be known.

        Raises:
            ReplicaFailedError: a process died, or its program failed.
            CollectiveMismatchError: the program of a process has ended.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise self.lost(str(error), what) from error

    def lost(self, problem: str, what: str) -> StratagemError:
        """The error for a collective that broke off with `problem`."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while time.monotonic() < deadline:
            for rank in range(self.world_size):
                if (gone := self._gone(rank, what)) is not None:
                    return gone
            time.sleep(_DEATH_SECONDS / 20)
        return ReplicaFailedError(
            f"{self.noun} {self.rank} lost another in {what}: {problem.splitlines()[0]}",
            fix="read the last lines that the other processes printed",
        )

    def _wait(self, number: int, rank: int, what: str, deadline: float) -> bytes:
        while True:
            try:
                return self._store.blocking_key_value_get_bytes(_key(number, rank), int(1000 * _LOOK_SECONDS))
            except jax.errors.JaxRuntimeError as error:
                if _LATE not in str(error):
                    raise self.lost(str(error), what) from error
            if (gone := self._gone(rank, what)) is not None:
                raise gone
            if time.monotonic() > deadline:
                missing = {
                    one: f"somewhere after {self._last[one]}"
                    for one in range(self.world_size)
                    if self._look(_key(number, one)) is None
                }
                raise _lost.late(missing, self.world_size, self.rank, what, self._timeout_seconds, self.noun)

    def _gone(self, rank: int, what: str) -> StratagemError | None:
        """The error that says how process `rank` went, if it did."""
        if rank == self.rank:
            return None
        how = self._look(_left(rank))
        if how is not None:
            return _lost.left(rank, how == b"failed", self.rank, what, self.noun)
        if self._dead(rank):
            return _lost.died(rank, self._pids[rank], self.rank, what, self.noun)
        return None

    def _dead(self, rank: int) -> bool:
        """Whether the process is no more, as far as this one can see."""
        return bool(self._pids) and not _lost.alive(self._pids[rank])

    def _look(self, key: str) -> bytes | None:
        try:
            return self._store.key_value_try_get_bytes(key)
        except jax.errors.JaxRuntimeError:  # nobody has set it, or the store has gone
            return None

    def _leave(self) -> None:
        """Tell the others that this program is at its end, and see whether they come to theirs."""
        # Set by the interpreter when it ends because of an exception that nobody caught.
        failed = getattr(sys, "last_value", None) is not None
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the process that keeps the store has gone
            self._store.key_value_set_bytes(_left(self.rank), b"failed" if failed else b"ended")
        limit_seconds = _NOTICE_SECONDS if failed else self._timeout_seconds
        if not self._all_left(time.monotonic() + limit_seconds) or failed:
            _leave_without_goodbye()

    def _all_left(self, deadline: float) -> bool:
        """Whether all others have come to the end of their programs; False at once when one is lost."""
        waiting = [rank for rank in range(self.world_size) if rank != self.rank]
        while waiting:
            rank = waiting[-1]
            if self._look(_left(rank)) is not None:
                waiting.pop()
            elif time.monotonic() > deadline or self._dead(rank):
                return False
            else:
                time.sleep(_LOOK_SECONDS / 10)
        return True


def _notice(notice: str) -> str:
    return f"stratagem/notice/{notice}"


def _leave_without_goodbye() -> None:
    """Keep jax from waiting at the end for processes that do not come: it would end this one with SIGABRT."""
    held = distributed.global_state
    for kept in (held.client, held.service):
        # Their destructors would wait as well.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    held.client = held.service = held.preemption_sync_manager = None


def join(place: env.Job | Cluster) -> Peers:
    """Meet the other processes of a job and make their devices one system.

    Raises:
        CollectiveTimeoutError: a process did not come in time.
        ContextError: jax has started already.
    """
    timeout_seconds = env.collective_timeout_seconds()
    if isinstance(place, Cluster):
        _meeting.meet_at_address(place, timeout_seconds)
        host, port = place.chief
        _initialize(f"{host}:{port}", f"[::]:{port}", place.rank, place.world_size, None, timeout_seconds)
    else:
        with _meeting.meet_in_folder(place, timeout_seconds) as address:
            _initialize(address, address, place.rank, place.world_size, _local_gpus(place), timeout_seconds)
    return Peers(place.rank, place.world_size, on_one_host=isinstance(place, env.Job), timeout_seconds=timeout_seconds)


def _initialize(
    address: str, bind: str, rank: int, world_size: int, gpus: Sequence[int] | None, timeout_seconds: float
) -> None:
    # Without it, processes on CPUs have no collectives.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # jax's own handler of SIGTERM would only take note of it, and the program would train on.
    jax.config.update("jax_enable_preemption_service", False)
    seconds = max(1, int(timeout_seconds))
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            coordinator_bind_address=bind,
            num_processes=world_size,
            process_id=rank,
            local_device_ids=gpus,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=seconds,
        )
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise ContextError(
            "jax has started before this process joined its job",
            fix="make the strategy before anything computes with jax or makes a Keras layer or variable",
        ) from error


def _local_gpus(job: env.Job) -> list[int] | None:
    """Which of this host's GPUs are this process's."""
    count = env.replicas() or launch.num_gpus(env.inherited())
    if env.cpu_devices() is not None or not count:
        return None
    share = count // job.world_size
    return list(range(job.rank * share, (job.rank + 1) * share))


def _key(number: int, rank: int) -> str:
    return f"stratagem/{number}/{rank}"


def _left(rank: int) -> str:
    return f"stratagem/left/{rank}"
