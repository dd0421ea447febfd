# SPDX-License-Identifier: Apache-2.0
"""A job ends when its first process is told to, or is killed, and leaves nothing."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import Program, script, started, stratagem, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

# Both ways to get two replicas, of the same script.
WAYS = pytest.mark.parametrize("first", [stratagem("run", "--replicas", "2"), [sys.executable]], ids=["run", "plain"])

START = """
import ctypes, os, pathlib, signal, subprocess, sys, time
from stratagem import launch
if "STRATAGEM_RANK" not in os.environ:
    launch.become_launcher(2)
rank = os.environ["STRATAGEM_RANK"]
ready = pathlib.Path("ready-" + rank)
"""


def _wait_for_both(program: Program, folder: Path) -> None:
    for rank in range(2):
        program.wait_for(folder / f"ready-{rank}")


@WAYS
def test_sigkill_of_the_first_process_leaves_no_survivor(tmp_path: Path, first: list[str]) -> None:
    # Replica 0 holds the interpreter lock in C, replica 1 sleeps and has started a process of its own.
    name = script(
        tmp_path,
        START
        + """
if rank == "0":
    ready.touch()
    ctypes.PyDLL(None).sleep(60)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "60"])
ready.touch()
time.sleep(60)
""",
    )
    with started([*first, name], tmp_path) as program:
        _wait_for_both(program, tmp_path)
        assert len(program.survivors()) >= 5, "the first, the warden, two replicas and a process of one"
        program.process.kill()
        program.process.wait()
        program.leaves_nothing(within_seconds=2)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_sigkill_of_all_but_the_replicas_leaves_no_survivor(tmp_path: Path) -> None:
    name = script(tmp_path, START + "ready.touch(); time.sleep(60)")
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        _wait_for_both(program, tmp_path)
        for pid in program.survivors():
            if "_warden.py" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        program.process.kill()
        program.process.wait()
        wait_until(lambda: not program.survivors(), "all processes to end", seconds=2)


@WAYS
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_replicas_and_their_exit_code_is_kept(
    tmp_path: Path, first: list[str], signum: signal.Signals
) -> None:
    name = script(
        tmp_path,
        START
        + f"""
def save(signum, frame):
    pathlib.Path(f"saved-{{rank}}").touch()
    sys.exit(5)
signal.signal({int(signum)}, save)
ready.touch()
time.sleep(60)
""",
    )
    with started([*first, name], tmp_path) as program:
        _wait_for_both(program, tmp_path)
        program.process.send_signal(signum)
        code, _, err = program.finish()
        program.leaves_nothing(within_seconds=2)
    assert code == 5
    assert (tmp_path / "saved-0").exists()
    assert (tmp_path / "saved-1").exists()
    assert "failed first" not in err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_the_script_does_not_handle_ends_the_job_as_it_would_end_python(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    name = script(tmp_path, START + "ready.touch(); time.sleep(60)")
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        _wait_for_both(program, tmp_path)
        program.process.send_signal(signum)
        assert program.finish()[0] == code
        program.leaves_nothing(within_seconds=2)


def test_a_second_ctrl_c_ends_replicas_that_took_the_first_as_no_reason_to(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        START
        + """
signal.signal(signal.SIGINT, lambda *_: pathlib.Path("took-" + rank).touch())
ready.touch()
while True:
    time.sleep(1)
""",
    )
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        _wait_for_both(program, tmp_path)
        program.process.send_signal(signal.SIGINT)
        program.wait_for(tmp_path / "took-0")
        program.wait_for(tmp_path / "took-1")
        program.process.send_signal(signal.SIGINT)
        assert program.finish()[0] == 128 + signal.SIGKILL
        program.leaves_nothing(within_seconds=2)


def test_two_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import os, pathlib, time
        folder = pathlib.Path(os.environ["STRATAGEM_JOB_DIR"])
        (folder / os.environ["STRATAGEM_RANK"]).touch()
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.01)
        print(folder, os.environ["TEST_JOB"])
        """,
    )
    run = stratagem("run", "--replicas", "2", name)
    with started(run, tmp_path, {"TEST_JOB": "a"}) as one, started(run, tmp_path, {"TEST_JOB": "b"}) as other:
        outputs = [one.finish(), other.finish()]
        one.leaves_nothing(within_seconds=2)
    folders = []
    for (code, out, _), job in zip(outputs, "ab", strict=True):
        words = [line.partition("] ")[2].split() for line in out.splitlines()]
        assert code == 0
        assert [word[1] for word in words] == [job, job]
        assert words[0][0] == words[1][0]
        folders.append(words[0][0])
    assert folders[0] != folders[1]
