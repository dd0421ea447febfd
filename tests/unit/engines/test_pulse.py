# SPDX-License-Identifier: Apache-2.0
"""The pulse by which the processes of a job know of each other."""

from __future__ import annotations

import functools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stratagem.engines import _pulse
from stratagem.engines._folder_store import FolderStore
from stratagem.engines._progress import PROGRESS
from stratagem.engines._pulse import Pulse, StoreGoneError
from stratagem.errors import ReplicaFailedError, WorkerLostError
from tests import waiting

pytestmark = pytest.mark.timeout(60)

NAMES = ("/worker:0 (a:1)", "/worker:1 (b:2)", "/worker:2 (c:3)")
WAIT_SECONDS = 15.0
until = functools.partial(waiting.until, within_seconds=WAIT_SECONDS)
Make = Callable[..., Pulse]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pulse, "BEAT_SECONDS", 0.03)
    monkeypatch.setattr(_pulse, "_END_SECONDS", 0.1)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Make]:
    """Starts pulses of one job; each is its own process as far as they can tell."""
    begun: list[Pulse] = []

    def make(rank: int, store: object = None, seconds: float = 60.0, host: str | None = None, **options: bool) -> Pulse:
        options = {"ends_program": False, **options}
        pulse = Pulse(store or FolderStore(tmp_path), rank, NAMES, failure_timeout_seconds=seconds, **options)
        pulse._host = host or f"host-{rank}"
        pulse.start()
        begun.append(pulse)
        return pulse

    yield make
    for pulse in begun:
        pulse.close()


class Gate:
    """A store that stops to answer: the process behind it is frozen, or its network gone."""

    def __init__(self, folder: Path) -> None:
        self._store = FolderStore(folder)
        self.open = threading.Event()
        self.open.set()
        self.gone = False

    def put(self, key: str, value: bytes) -> None:
        self._pass()
        self._store.put(key, value)

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        self._pass()
        return self._store.read(keys)

    def _pass(self) -> None:
        assert self.open.wait(WAIT_SECONDS)
        if self.gone:
            raise StoreGoneError


def test_each_hears_what_the_others_do(begin: Make) -> None:
    pulses = [begin(rank) for rank in range(3)]
    for mine in pulses:
        for rank in range(3):
            until(lambda mine=mine, rank=rank: mine.sign_of(rank), "a sign")
            sign = mine.sign_of(rank)
            assert sign is not None
            assert (sign.pid, sign.left, sign.host) == (os.getpid(), "", f"host-{rank}")


def test_one_that_falls_silent_is_lost_to_all_others_with_its_last_step(begin: Make, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    others = [begin(rank, seconds=1.0) for rank in (0, 2)]
    begin(1, store=gate)
    until(lambda: all(pulse.sign_of(1) for pulse in others), "signs")
    gate.open.clear()
    until(lambda: all(pulse.lost for pulse in others), "the loss")
    for pulse in others:
        assert isinstance(pulse.lost, WorkerLostError)
        assert pulse.lost.problem.startswith("/worker:1 (b:2) has been silent for 1 seconds; it ran on host-1 as pid ")
        assert f"{NAMES[pulse.rank]} is at step " in pulse.lost.problem
    gate.open.set()


def test_one_that_left_in_good_order_is_not_lost(begin: Make) -> None:
    mine, other = begin(0, seconds=0.5), begin(1)
    until(lambda: mine.sign_of(1), "its sign")
    other.close()
    until(lambda: (sign := mine.sign_of(1)) and sign.left == "ended", "its leaving")
    time.sleep(1.0)
    assert mine.lost is None


def test_one_that_itself_had_stopped_does_not_take_the_others_for_lost(begin: Make, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    mine = begin(0, store=gate, seconds=1.0)
    begin(1)
    until(lambda: mine.sign_of(1), "its sign")
    gate.open.clear()
    time.sleep(1.5)
    gate.open.set()
    time.sleep(0.5)
    assert mine.lost is None


def test_a_dead_process_of_the_same_host_is_noticed_at_once(begin: Make, tmp_path: Path) -> None:
    here = socket.gethostname()
    mine = begin(0, host=here)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    begin(1, store=_WithPid(tmp_path, process.pid), host=here)
    until(lambda: mine.lost, "the loss")
    assert mine.lost is not None
    assert f"/worker:1 (b:2) died; it ran on {here} as pid" in mine.lost.problem


class _WithPid(FolderStore):
    """Signs of a process that is no more."""

    def __init__(self, folder: Path, pid: int) -> None:
        super().__init__(folder)
        self._pid = pid

    def put(self, key: str, value: bytes) -> None:
        import dataclasses
        import pickle

        super().put(key, pickle.dumps(dataclasses.replace(pickle.loads(value), pid=self._pid)))


@pytest.mark.parametrize("gone", [True, False], ids=["dead", "frozen"])
def test_with_the_keeper_of_the_store_the_first_process_is_lost(begin: Make, tmp_path: Path, gone: bool) -> None:
    gate = Gate(tmp_path)
    begin(0)
    mine = begin(1, store=gate, seconds=1.0, kept_by_first=True)
    until(lambda: mine.sign_of(0), "its sign")
    gate.gone = gone
    if not gone:
        gate.open.clear()
    until(lambda: mine.lost, "the loss")
    gate.open.set()
    assert isinstance(mine.lost, WorkerLostError)
    assert mine.lost.problem.startswith("/worker:0 (a:1) " + ("does not answer" if gone else "has been silent for"))


def test_who_lost_a_connection_learns_who_broke_it_and_not_who_lost_it_as_well(begin: Make, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    mine, second = begin(0), begin(2)
    begin(1, store=gate)
    until(lambda: mine.sign_of(1) and mine.sign_of(2), "signs")
    gate.open.clear()
    second.close(failed=True)
    error = mine.whoever_broke("all_reduce(SUM)")
    gate.open.set()
    assert isinstance(error, WorkerLostError)
    assert error.problem.startswith("/worker:1 (b:2) broke its connections")


def test_a_program_that_failed_is_named_when_nobody_is_lost(begin: Make) -> None:
    mine, second, _ = begin(0), begin(2), begin(1)
    until(lambda: mine.sign_of(1) and mine.sign_of(2), "signs")
    second.close(failed=True)
    error = mine.whoever_broke("all_reduce(SUM)")
    assert isinstance(error, ReplicaFailedError)
    assert not isinstance(error, WorkerLostError)
    assert error.problem == f"the program of {NAMES[2]} failed while {NAMES[0]} waited in all_reduce(SUM)"


@pytest.mark.parametrize("attempt", range(3))
def test_all_stop_at_the_same_step_whoever_is_asked_and_however_far_they_are(begin: Make, attempt: int) -> None:
    pulses = [begin(rank) for rank in range(3)]
    meeting = threading.Barrier(3, timeout=WAIT_SECONDS)
    stopped: dict[int, int] = {}
    asked_at = 20 + 7 * attempt

    def train(pulse: Pulse) -> None:
        naps = random.Random(pulse.rank + attempt)
        for step in range(1, 5000):
            # The collective of a step: nobody is done with it before all have begun it.
            meeting.wait()
            time.sleep(0.002 * naps.random())
            if pulse.rank == attempt and step == asked_at:
                pulse.request()
            if pulse.stop_here(step):
                stopped[pulse.rank] = step
                return

    threads = [threading.Thread(target=train, args=(pulse,)) for pulse in pulses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert len(stopped) == 3
    assert len(set(stopped.values())) == 1
    assert asked_at <= min(stopped.values()) < 5000
    assert {pulse.asked_by() for pulse in pulses} == {NAMES[attempt]}


def test_what_a_process_does_is_what_the_pulse_tells(begin: Make) -> None:
    mine, _ = begin(0), begin(1)
    assert mine.ask(2) is None
    PROGRESS.number, PROGRESS.doing = 12, "all_reduce(SUM)\tof float32[3] at train.py:7"
    until(lambda: (sign := mine.ask(1)) is not None and sign.number == 12, "the sign")
    note = mine.ask(1)
    assert note is not None
    assert (note.doing, note.left, note.died) == ("all_reduce(SUM)\tof float32[3] at train.py:7", "", False)
