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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax._src import distributed  # the store has no public name
from jax._src.lib import _jax

from stratagem import launch
from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem.engines import _lost, _meeting
from stratagem.engines._header import Header
from stratagem.engines._progress import PROGRESS
from stratagem.engines._pulse import Pulse
from stratagem.engines.jax import _in_flight
from stratagem.engines.jax._coordinator import Coordinator
from stratagem.engines.jax._key_value_store import KeyValueStore
from stratagem.errors import CollectiveMismatchError, ContextError, ReplicaFailedError, StratagemError

__all__ = ["Peers", "join"]

_LOOK_SECONDS = 0.2
_DEATH_SECONDS = 2.0
_NOTICE_SECONDS = 1.0  # for the others to learn that this one failed, as the store may go with it
_LATE = "DEADLINE_EXCEEDED"
_BROKEN = "Gloo"


@dataclass(frozen=True)
class _Said:
    """What a process says in one exchange: what it is doing, and more."""

    doing: str
    more: Any


class Peers:
    """This process's place among those of its job.

    Args:
        rank: This process's number.
        names: For people, by rank.
        on_one_host: Whether they all run on this host.
        timeout_seconds: The longest that one waits for another.
    """

    def __init__(self, rank: int, names: Sequence[str], *, on_one_host: bool, timeout_seconds: float) -> None:
        self.rank = rank
        self.world_size = len(names)
        self._timeout_seconds = timeout_seconds
        self._store: Any = distributed.global_state.client
        self._number = 0
        self._last = ["the start"] * self.world_size
        self._pids: list[int] = []
        self.pulse = Pulse(
            KeyValueStore(self._store),
            rank,
            names,
            failure_timeout_seconds=env.failure_timeout_seconds(),
            kept_by_first=True,
            stalled=self._stalled,
        )
        self.pulse.start()
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
        PROGRESS.number, PROGRESS.doing = number, doing
        with self.naming_the_lost(doing):
            self._store.key_value_set_bytes(_key(number, self.rank), pickle.dumps(_Said(doing, mine)))
        deadline = time.monotonic() + self._timeout_seconds
        said: list[_Said] = [pickle.loads(self._wait(number, rank, doing, deadline)) for rank in range(self.world_size)]
        self._check_same(doing, mine, said)
        if number >= 2:
            # Whoever has come here has seen all of the exchange before, so nobody reads the one before that any more.
            self._store.key_value_delete(_key(number - 2, self.rank))
        self._last = [one.doing for one in said]
        return [one.more for one in said]

    def _check_same(self, doing: str, mine: Any, said: list[_Said]) -> None:
        """That all say the same kind of thing; two different collectives are told apart by their headers."""
        for rank, one in enumerate(said):
            if _kind(doing) != _kind(one.doing) and not (_has_headers(mine) and _has_headers(one.more)):
                raise CollectiveMismatchError(
                    f"{self.pulse.names[self.rank]} is in {doing}, and {self.pulse.names[rank]} in {one.doing}",
                    fix="run the same program in every process, on the same data",
                )

    def call_replicas(self) -> None:
        """Each process of this host has one replica, by whose number people know it."""
        if self._pids:
            self.pulse.names = tuple(f"replica {rank}" for rank in range(self.world_size))

    def post(self, notice: str) -> None:
        """Let `posted` be true in the other processes, now and later."""
        self._store.key_value_set_bytes(_notice(notice), b"")

    def posted(self, notice: str) -> bool:
        """Whether some process has posted `notice`."""
        return self._look(_notice(notice)) is not None

    def wait_until(self, ready: Callable[[], bool], rank: int, what: str) -> None:
        """Return once `ready()`, which looks at what process `rank` has posted.

        Raises:
            CollectiveTimeoutError: it did not in time.
            ReplicaFailedError: it died, or its program failed.
            CollectiveMismatchError: its program has ended.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while not ready():
            if (gone := self._gone(rank, what)) is not None:
                raise gone
            if time.monotonic() > deadline:
                raise self._late({rank: f"somewhere after {self._last[rank]}"}, what, self._timeout_seconds)
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
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            # A step that is sent when a connection has broken raises the second.
            if isinstance(error, ValueError) and _BROKEN not in str(error):
                raise
            raise self.lost(str(error), what) from error

    def lost(self, problem: str, what: str) -> StratagemError:
        """The error for a collective that broke off with `problem`."""
        if not self._pids and (gone := self.pulse.whoever_broke(what)) is not None:
            return gone
        deadline = time.monotonic() + _DEATH_SECONDS
        while time.monotonic() < deadline:
            for rank in range(self.world_size):
                if (gone := self._gone(rank, what)) is not None:
                    return gone
            time.sleep(_DEATH_SECONDS / 20)
        return ReplicaFailedError(
            f"{self.pulse.names[self.rank]} lost another one in {what}: {problem.splitlines()[0]}",
            fix="read the last lines that the others printed",
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
                raise self._late(missing, what, self._timeout_seconds)

    def _gone(self, rank: int, what: str) -> StratagemError | None:
        """The error that says how process `rank` went, if it did."""
        if rank == self.rank:
            return None
        how = self._look(_left(rank))
        if how is not None:
            return _lost.left(self.pulse.names[rank], how == b"failed", self.pulse.names[self.rank], what)
        if self._dead(rank):
            self.pulse.leave_to_program()
            return _lost.died(self.pulse.names[rank], self._pids[rank], self.pulse.names[self.rank], what)
        return None if self.pulse.lost is None else self.pulse.raised()

    def _dead(self, rank: int) -> bool:
        """Whether the process is no more, as far as this one can see."""
        return bool(self._pids) and not _lost.alive(self._pids[rank])

    def _look(self, key: str) -> bytes | None:
        try:
            return self._store.key_value_try_get_bytes(key)
        except jax.errors.JaxRuntimeError:  # nobody has set it, or the store has gone
            return None

    def _stalled(self) -> StratagemError | None:
        """The error about those for whom a compiled step has waited too long."""
        seconds = _in_flight.waiting_seconds()
        if seconds < self._timeout_seconds:
            return None
        missing = {}
        for rank in range(self.world_size):
            sign = self.pulse.sign_of(rank)
            if rank != self.rank and sign is not None and (sign.step, sign.number) != (PROGRESS.step, PROGRESS.number):
                missing[rank] = f"at step {sign.step}, in {sign.doing}"
        what = f"step {PROGRESS.step}"
        return self._late(missing or {self.rank: what}, what, seconds)

    def _late(self, missing: Mapping[int, str], what: str, seconds: float) -> StratagemError:
        names = self.pulse.names
        named = {names[rank]: doing for rank, doing in missing.items()}
        return _lost.late(named, self.world_size, names[self.rank], what, seconds)

    def _leave(self) -> None:
        """Tell the others that this program is at its end, and see whether they come to theirs."""
        # Set by the interpreter when it ends because of an exception that nobody caught.
        failed = getattr(sys, "last_value", None) is not None
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the process that keeps the store has gone
            self._store.key_value_set_bytes(_left(self.rank), b"failed" if failed else b"ended")
        self.pulse.close(failed=failed)
        limit_seconds = _NOTICE_SECONDS if failed else self._timeout_seconds
        if not self._all_left(time.monotonic() + limit_seconds) or failed or self._some_failed():
            _leave_without_goodbye()

    def _some_failed(self) -> bool:
        """Whether the program of another has failed, which does not say goodbye to jax."""
        return any(self._look(_left(rank)) == b"failed" for rank in range(self.world_size) if rank != self.rank)

    def _all_left(self, deadline: float) -> bool:
        """Whether all others have come to the end of their programs; False at once when one is lost."""
        waiting = [rank for rank in range(self.world_size) if rank != self.rank]
        limit_seconds = env.failure_timeout_seconds()
        beat, heard = 0, time.monotonic()
        while waiting:
            rank, now = waiting[-1], time.monotonic()
            sign = self.pulse.ask(rank)
            if sign is not None and sign.beat != beat:
                beat, heard = sign.beat, now
            if self._look(_left(rank)) is not None:
                waiting.pop()
                beat, heard = 0, now
            elif now > deadline or now - heard > limit_seconds or self._dead(rank):
                return False
            else:
                time.sleep(_LOOK_SECONDS / 10)
        return True


def _kind(doing: str) -> str:
    """What is done, without the tensors and the line of the program: "all_reduce" of "all_reduce(SUM) of ..."."""
    return doing.partition(" of ")[0].partition("(")[0]


def _has_headers(said: Any) -> bool:
    return isinstance(said, Sequence) and all(isinstance(part, Header) for part in said) and bool(said)


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
        names = [place.names([rank]) for rank in range(place.world_size)]
        _reached_at(_meeting.meet_at_address(place, timeout_seconds))
        host, port = place.chief
        gpus = _gpus_of_task(place)
        _initialize(f"{host}:{port}", f"[::]:{port}", place.rank, place.world_size, gpus, timeout_seconds)
    else:
        names = [f"process {rank}" for rank in range(place.world_size)]
        with _meeting.meet_in_folder(place, timeout_seconds) as address:
            _initialize(address, address, place.rank, place.world_size, _local_gpus(place), timeout_seconds)
    return Peers(place.rank, names, on_one_host=isinstance(place, env.Job), timeout_seconds=timeout_seconds)


def _initialize(
    address: str, bind: str, rank: int, world_size: int, gpus: Sequence[int] | None, timeout_seconds: float
) -> None:
    # Without it, processes on CPUs have no collectives.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # jax's own handler of SIGTERM would only take note of it, and the program would train on.
    jax.config.update("jax_enable_preemption_service", False)
    seconds = max(1, int(timeout_seconds))
    try:
        with _coordinator_apart():
            jax.distributed.initialize(
                coordinator_address=address,
                coordinator_bind_address=bind,
                num_processes=world_size,
                process_id=rank,
                local_device_ids=gpus,
                initialization_timeout=seconds,
                # Only later than our own pulse: jax ends the process with SIGABRT.
                heartbeat_timeout_seconds=int(2 * env.failure_timeout_seconds()) + 10,
                shutdown_timeout_seconds=seconds,
            )
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise ContextError(
            "jax has started before this process joined its job",
            fix="make the strategy before anything computes with jax or makes a Keras layer or variable",
        ) from error


def _reached_at(address: str) -> None:
    """Let gloo listen at the address by which the others reach this host; it would take what the host's name means."""
    _jax.make_gloo_tcp_collectives = partial(_jax.make_gloo_tcp_collectives, hostname=address)


@contextlib.contextmanager
def _coordinator_apart() -> Iterator[None]:
    """Services that jax starts inside are processes of their own."""
    make = _jax.get_distributed_runtime_service
    _jax.get_distributed_runtime_service = Coordinator
    try:
        yield
    finally:
        _jax.get_distributed_runtime_service = make


def _local_gpus(job: env.Job) -> list[int] | None:
    """Which of this host's GPUs are this process's."""
    count = env.replicas() or launch.num_gpus(env.inherited())
    if env.cpu_devices() is not None or not count:
        return None
    share = count // job.world_size
    return list(range(job.rank * share, (job.rank + 1) * share))


def _gpus_of_task(cluster: Cluster) -> list[int] | None:
    """Which of this host's GPUs are this task's, or None for all."""
    count = launch.num_gpus(env.inherited())
    if env.cpu_devices() is not None or not count or cluster.num_local_tasks == 1:
        return None
    mine = cluster.devices_of_task([f"GPU:{index}" for index in range(count)])
    return [int(name.partition(":")[2]) for name in mine]


def _key(number: int, rank: int) -> str:
    return f"stratagem/{number}/{rank}"


def _left(rank: int) -> str:
    return f"stratagem/left/{rank}"
