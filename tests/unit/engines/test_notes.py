# SPDX-License-Identifier: Apache-2.0
"""The notes and the board by which replicas know of each other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stratagem.engines import _lost
from stratagem.engines.torch._board import Board
from stratagem.engines.torch._header import Header
from stratagem.engines.torch._notes import Note, Notes
from stratagem.errors import ArgumentError, CollectiveMismatchError, CollectiveTimeoutError, ReplicaFailedError

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    notes = Notes(tmp_path, 0)
    yield notes
    notes.close()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_note_says_what_was_written_last(notes: Notes) -> None:
    notes.write(1, "barrier('a')")
    notes.write(12, "all_reduce(SUM)\tof float32[3] at train.py:7", "failed")
    note = notes.read(0)
    assert (note.number, note.text, note.left) == (12, "all_reduce(SUM)\tof float32[3] at train.py:7", "failed")
    assert note.pid == os.getpid()


def test_a_replica_that_wrote_nothing_has_an_empty_note(notes: Notes, tmp_path: Path) -> None:
    assert notes.read(1) == Note()
    assert not notes.read(1).died
    (tmp_path / "doing-1").touch()
    assert notes.read(1) == Note()


def test_notes_do_not_grow(notes: Notes, tmp_path: Path) -> None:
    sizes = set()
    for number in range(5):
        notes.write(number, "x" * 10**number)
        sizes.add((tmp_path / "doing-0").stat().st_size)
    assert len(sizes) == 1
    assert notes.read(0).number == 4


def test_a_process_counts_as_dead_only_without_a_word_and_on_this_host(notes: Notes) -> None:
    notes.write(1, "barrier('a')")
    mine = notes.read(0)
    assert not mine.died
    assert Note(mine.host, dead_pid(), "", 1, "").died
    assert not Note(mine.host, dead_pid(), "ended", 1, "").died
    assert not Note("elsewhere", dead_pid(), "", 1, "").died


def test_each_way_to_stay_away_has_its_error() -> None:
    died = _lost.died(1, 77, 0, "barrier('a')")
    assert isinstance(died, ReplicaFailedError)
    assert "the process of replica 1 (pid 77) died while replica 0 waited in barrier('a')" in str(died)
    failed = _lost.left(1, True, 0, "barrier('a')")
    assert isinstance(failed, ReplicaFailedError)
    assert "the program of replica 1 failed while replica 0 waited in barrier('a')" in str(failed)
    ended = _lost.left(1, False, 0, "barrier('a')")
    assert isinstance(ended, CollectiveMismatchError)
    assert "replica 0 waits in barrier('a'), but the program of replica 1 has ended" in str(ended)
    late = _lost.late({1: "not yet in any collective", 2: "in barrier('b')"}, 3, 0, "barrier('a')", 2.5)
    assert isinstance(late, CollectiveTimeoutError)
    assert "waited 2.5 seconds in barrier('a') for replica 1, 2 of 3: replica 1 is not yet in any" in str(late)


def test_a_board_takes_headers_of_thousands_of_tensors_and_refuses_more() -> None:
    board = Board.create(0, 1, 1.0)
    few, many = (Header("all_reduce(SUM)", ((torch.float32, (1, 2)),) * count) for count in (20_000, 2_000_000))
    board.begin("all_reduce(SUM)")
    assert board.exchange(few) == [few]
    board.end()
    board.begin("all_reduce(SUM)")
    with pytest.raises(ArgumentError, match=r"2000000 tensors are too many for one all_reduce\(SUM\)"):
        board.exchange(many)
    board.segment.close()
