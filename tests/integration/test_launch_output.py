# SPDX-License-Identifier: Apache-2.0
"""What a job prints, and how it ends by itself."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import script, started, stratagem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

BECOME = """
import os, sys
from stratagem import launch
if "STRATAGEM_RANK" not in os.environ:
    print("before", flush=True)
    launch.become_launcher(2)
"""


def test_each_line_says_which_replica_wrote_it(tmp_path: Path) -> None:
    name = script(tmp_path, "import os, sys; print('one'); print('two', file=sys.stderr)")
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        code, out, err = program.finish()
    assert code == 0
    assert sorted(out.splitlines()) == ["[replica 0/2] one", "[replica 1/2] one"]
    assert sorted(err.splitlines()) == ["[replica 0/2] two", "[replica 1/2] two"]


def test_a_single_process_writes_without_a_prefix(tmp_path: Path) -> None:
    name = script(tmp_path, "print('alone')")
    with started(stratagem("run", name), tmp_path) as program:
        assert program.finish() == (0, "alone\n", "")


def test_a_line_without_an_end_is_shown_while_its_process_waits(tmp_path: Path) -> None:
    name = script(tmp_path, "import time; print('half', end='', flush=True); time.sleep(60)")
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        assert program.process.stdout is not None
        seen = program.process.stdout.read(len("[replica 0/2] half"))
    assert seen in ("[replica 0/2] half", "[replica 1/2] half")


@pytest.mark.parametrize("arguments", [["run", "--replicas", "2"], None], ids=["stratagem run", "plain python"])
def test_the_exit_code_is_that_of_the_first_failure_and_its_traceback_is_shown_last(
    tmp_path: Path, arguments: list[str] | None
) -> None:
    name = script(
        tmp_path,
        BECOME
        + """
import pathlib, time
if os.environ["STRATAGEM_RANK"] == "0":
    while not pathlib.Path("failing").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    raise RuntimeError("a consequence")
try:
    {}["inner"]
except KeyError as error:
    try:
        raise ValueError("outer") from error
    except ValueError:
        import traceback
        traceback.print_exc()
        pathlib.Path("failing").touch()
        os._exit(7)
""",
    )
    with started(stratagem(*arguments, name) if arguments else [sys.executable, name], tmp_path) as program:
        code, _, err = program.finish()
        program.leaves_nothing(within_seconds=2)
    assert code == 7
    report = err[err.index("\nstratagem: ") :].splitlines()
    assert report[1].startswith("stratagem: replica 1/2 failed first: it ended with exit code 7; the other replica was")
    assert report[2] == "Traceback (most recent call last):"
    assert "KeyError: 'inner'" in report
    assert report[-1] == "ValueError: outer"


def test_a_replica_that_is_killed_ends_the_job_with_137_and_is_named(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import os, signal, time
        if os.environ["STRATAGEM_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
    )
    with started(stratagem("run", "--replicas", "3", name), tmp_path) as program:
        code, _, err = program.finish()
        program.leaves_nothing(within_seconds=2)
    assert code == 128 + signal.SIGKILL
    assert "replica 1/3 failed first: it was killed by SIGKILL (exit code 137" in err
    assert "the other replicas were stopped" in err


def test_a_replica_that_ignores_sigterm_is_stopped_all_the_same(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import os, pathlib, signal, sys, time
        if os.environ["STRATAGEM_RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pathlib.Path("deaf").touch()
            time.sleep(60)
        while not pathlib.Path("deaf").exists():
            time.sleep(0.01)
        sys.exit(3)
        """,
    )
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        assert program.finish()[0] == 3
        program.leaves_nothing(within_seconds=2)


def test_what_a_replica_started_ends_with_it(tmp_path: Path) -> None:
    name = script(tmp_path, "import subprocess; subprocess.Popen(['sleep', '60'])")
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        assert program.finish()[0] == 0
        program.leaves_nothing(within_seconds=2)


def test_a_reader_that_goes_away_ends_the_job(tmp_path: Path) -> None:
    name = script(tmp_path, "while True: print('y' * 1000)")
    with started(stratagem("run", "--replicas", "2", name), tmp_path) as program:
        assert program.process.stdout is not None
        program.process.stdout.readline()
        program.process.stdout.close()
        assert program.process.wait(timeout=20) == 128 + signal.SIGPIPE
        program.leaves_nothing(within_seconds=2)


def test_plain_python_runs_its_own_command_line_again_from_where_it_was_started(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    name = script(
        tmp_path,
        """
        import json, os, sys
        from stratagem import launch
        options = [sys.argv, os.getcwd(), sys.flags.optimize, __name__, __file__]
        os.chdir("elsewhere")
        if "STRATAGEM_RANK" not in os.environ:
            launch.become_launcher(2)
        print(json.dumps(options))
        """,
    )
    with started([sys.executable, "-O", name, "--replicas", "a b", ""], tmp_path) as program:
        code, out, err = program.finish()
    assert (code, err) == (0, "")
    lines = [json.loads(line.partition("] ")[2]) for line in out.splitlines()]
    expected = [[name, "--replicas", "a b", ""], str(tmp_path), 1, "__main__", str(tmp_path / name)]
    assert lines == [expected] * 2


def test_plain_python_m_runs_the_module_again(tmp_path: Path) -> None:
    script(tmp_path, BECOME + "print(__spec__.name, sys.argv[1:])", name="program.py")
    with started([sys.executable, "-m", "program", "-x"], tmp_path) as program:
        code, out, _ = program.finish()
    assert code == 0
    assert sorted(out.splitlines()) == ["[replica 0/2] program ['-x']", "[replica 1/2] program ['-x']", "before"]


def test_plain_python_c_runs_the_command_again(tmp_path: Path) -> None:
    with started([sys.executable, "-c", BECOME + "print('again')"], tmp_path) as program:
        code, out, _ = program.finish()
    assert code == 0
    assert sorted(out.splitlines()) == ["[replica 0/2] again", "[replica 1/2] again", "before"]


def test_nothing_of_the_program_runs_in_the_first_process_any_more(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import atexit, os
        from stratagem import launch
        if "STRATAGEM_RANK" not in os.environ:
            atexit.register(print, "atexit")
            try:
                launch.become_launcher(2)
            finally:
                print("finally")
        """,
    )
    with started([sys.executable, name], tmp_path) as program:
        assert program.finish() == (0, "", "")
