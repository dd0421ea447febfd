# SPDX-License-Identifier: Apache-2.0
"""The signs and the board by which replicas know of each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stratagem.engines import _lost
from stratagem.engines._folder_store import FolderStore
from stratagem.engines._pulse import Pulse, Sign
from stratagem.engines.torch._board import Board
from stratagem.engines.torch._header import Header
from stratagem.errors import ArgumentError, CollectiveMismatchError, CollectiveTimeoutError, ReplicaFailedError

pytestmark = pytest.mark.timeout(30)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def sign(host: str, pid: int, left: str = "") -> Sign:
    return Sign(beat=1, host=host, pid=pid, step=0, number=1, doing="", left=left, asks_to_stop=False, stop_at=None)


def test_a_process_counts_as_dead_only_without_a_word_and_on_this_host() -> None:
    here = socket.gethostname()
    assert not sign(here, os.getpid()).died
    assert sign(here, dead_pid()).died
    assert not sign(here, dead_pid(), "ended").died
    assert not sign("elsewhere", dead_pid()).died


def test_each_way_to_stay_away_has_its_error() -> None:
    died = _lost.died("replica 1", 77, "replica 0", "barrier('a')")
    assert isinstance(died, ReplicaFailedError)
    assert "the process of replica 1 (pid 77) died while replica 0 waited in barrier('a')" in str(died)
    failed = _lost.left("replica 1", True, "replica 0", "barrier('a')")
    assert isinstance(failed, ReplicaFailedError)
    assert "the program of replica 1 failed while replica 0 waited in barrier('a')" in str(failed)
    ended = _lost.left("replica 1", False, "replica 0", "barrier('a')")
    assert isinstance(ended, CollectiveMismatchError)
    assert "replica 0 waits in barrier('a'), but the program of replica 1 has ended" in str(ended)
    late = _lost.late(
        {"replica 1": "not yet in any collective", "replica 2": "in barrier('b')"}, 3, "replica 0", "barrier('a')", 2.5
    )
    assert isinstance(late, CollectiveTimeoutError)
    assert "waited 2.5 seconds in barrier('a') for replica 1, replica 2 of 3: replica 1 is not yet in any" in str(late)


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


def test_a_board_is_taken_only_for_what_the_first_task_marked(tmp_path: Path) -> None:
    board = Board.create(0, 2, 10.0)
    handle, pulse = board.segment.handle, Pulse(FolderStore(tmp_path), 1, ["a", "b"], failure_timeout_seconds=9.0)
    board.mark(12345)
    assert Board.open_marked(54321, handle, 1, 2, 1.0, pulse) is None
    assert Board.open_marked(12345, replace(handle, pid=dead_pid()), 1, 2, 1.0, pulse) is None
    assert Board.open_marked(12345, replace(handle, num_bytes=2 * handle.num_bytes), 1, 2, 1.0, pulse) is None
    opened = Board.open_marked(12345, handle, 1, 2, 1.0, pulse)
    assert opened is not None
    opened.leave()
    board.begin("barrier('a')")
    with pytest.raises(CollectiveMismatchError, match="the program of replica 1 has ended"):
        board.exchange(Header("barrier('a')"))
    board.segment.close()
