# SPDX-License-Identifier: Apache-2.0
"""The doctors' calls over real sockets, with strangers among them."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem.doctor import _ports, _shared_folder
from stratagem.doctor._meeting import Meeting
from stratagem.doctor._probe import Probe
from stratagem.doctor._report import REACHED, Report, Table
from tests.processes import wait_until

pytestmark = pytest.mark.timeout(60)


def listener() -> tuple[socket.socket, str]:
    made = _ports.listen(0)
    return made, f"127.0.0.1:{made.getsockname()[1]}"


def test_doctors_come_to_know_each_other_over_a_third() -> None:
    # The second listens nowhere, and it and the third know the first alone: what they hear of each other it passes on.
    (first, at_first), (third, at_third) = listener(), listener()
    closed = _ports.listen(0)
    nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    tasks = (("worker:0", at_first), ("worker:1", nowhere), ("worker:2", at_third))
    known = (tasks, tasks[:2], (tasks[0], tasks[2]))
    tables = [Table(Report(task=tasks[index][0], host="h", tasks=known[index])) for index in range(3)]
    with contextlib.ExitStack() as opened:
        for table, own in zip(tables, (first, None, third), strict=True):
            opened.enter_context(Meeting(table, own))
        wait_until(lambda: all(len(table.view().others) == 2 for table in tables), "all to know all")
        wait_until(
            lambda: all(len(one.calls) == len(one.tasks) for one in tables[2].view().reports), "all to have called"
        )
        # Not of its own knowledge: the third hears how the calls of the others ended.
        found = {one.task: {task: call.how for task, call in one.calls.items()} for one in tables[2].view().reports}
    assert found == {
        "worker:0": {"worker:0": REACHED, "worker:1": "refused", "worker:2": REACHED},
        "worker:1": {"worker:0": REACHED, "worker:1": "refused"},
        "worker:2": {"worker:0": REACHED, "worker:2": REACHED},
    }
    offset = tables[1].view().me.calls["worker:0"].clock_offset_seconds
    assert offset is not None
    assert abs(offset) < 1.0


def test_a_port_where_something_else_answers_is_a_stranger() -> None:
    with _web_server() as at_stranger:
        own, at_own = listener()
        table = Table(Report(task="worker:0", host="h", tasks=(("worker:0", at_own), ("worker:1", at_stranger))))
        with Meeting(table, own):
            wait_until(lambda: "worker:1" in table.view().me.calls, "the call")
        assert table.view().me.calls["worker:1"].how == "stranger"


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"protocol": "stratagem doctor 1"}\n', b""])
def test_a_stranger_who_calls_does_no_harm(line: bytes) -> None:
    own, at_own = listener()
    table = Table(Report(task="worker:0", host="h", tasks=(("worker:0", at_own),)))
    host, _, port = at_own.partition(":")
    with Meeting(table, own):
        with socket.create_connection((host, int(port)), timeout=5.0) as caller:
            caller.sendall(line)
            caller.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                assert caller.recv(100) == b""
        wait_until(lambda: "worker:0" in table.view().me.calls, "the doctor to go on")
    assert table.view().others == ()


@contextlib.contextmanager
def _web_server() -> Iterator[str]:
    """An address where each line is answered as web servers do."""
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def answer() -> None:
        while not over.is_set():
            try:
                with server.accept()[0] as connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.recv(1000)
            except OSError:
                return

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        over.set()
        with contextlib.suppress(OSError), socket.create_connection(server.getsockname(), timeout=1.0):
            pass  # it waits for one more
        thread.join()
        server.close()


def test_the_owner_of_a_port_is_found() -> None:
    own, at_own = listener()
    with own:
        found = _ports.owner_of(int(at_own.partition(":")[2]))
    assert found is None or found.startswith("process ")
    assert not sys.platform.startswith("linux") or found is not None
    assert _ports.owner_of(1) is None


def test_a_word_is_seen_in_its_folder_and_goes_with_its_block(tmp_path: Path) -> None:
    with _shared_folder.left_word(tmp_path, "n") as word:
        mine = Report(task="worker:0", host="h", word=word.text, nonce="n")
        other = Report(task="worker:1", host="h", word="another", nonce="n")
        assert _shared_folder.seen(tmp_path, [mine, other]) == ("n",)
    assert list(tmp_path.iterdir()) == []
    with _shared_folder.left_word(tmp_path / "absent", "n") as word:
        assert word.text is None
        assert "No such file" in str(word.problem)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("print('noise'); print('{\"a\": 1}')", {"a": 1}),
        ("import json, sys; print(json.dumps(json.load(sys.stdin)))", {"asked": 1}),
        ("raise OSError('no libcuda')", {"problem": "OSError: no libcuda"}),
        ("import sys; sys.exit(7)", {"problem": "it ended with exit code 7"}),
        ("import os; os.abort()", {"problem": "it was ended by SIGABRT"}),
        ("import time; time.sleep(60)", {"problem": "no answer within 2 seconds"}),
    ],
)
def test_a_probe_answers_or_says_why_not(tmp_path: Path, program: str, answer: dict[str, object]) -> None:
    (tmp_path / "probed.py").write_text(program)
    with Probe("probed", {"asked": 1}, {"PYTHONPATH": str(tmp_path)}) as probe:
        found = probe.answer(2.0 if "sleep" in program else 20.0)
    assert found == answer


def test_a_probe_that_ends_before_it_was_asked_says_why(tmp_path: Path) -> None:
    (tmp_path / "probed.py").write_text("raise OSError('no libcuda')")
    more_than_a_pipe_holds = {"asked": "x" * 10**6}
    with Probe("probed", more_than_a_pipe_holds, {"PYTHONPATH": str(tmp_path)}) as probe:
        assert probe.answer(20.0) == {"problem": "OSError: no libcuda"}


def test_a_probe_is_given_up_when_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    (tmp_path / "probed.py").write_text("import time; time.sleep(60)")
    with Probe("probed", {}, {"PYTHONPATH": str(tmp_path)}) as probe:
        assert probe.answer(20.0, lambda: "the others failed") == {"problem": "the others failed"}
