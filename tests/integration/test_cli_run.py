# SPDX-License-Identifier: Apache-2.0
"""`stratagem run`: what starts, with what, and what is said of a command line that does not work."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratagem.cli import main
from stratagem.launch import num_cores
from tests.processes import script, started, stratagem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

SHARE = str(max(1, num_cores() // 2))

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """`cli(*arguments, NAME=value)`: exit code, stdout and stderr of a command line that starts nothing."""

    def call(*arguments: str, **variables: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["stratagem", *arguments])
        # A machine with GPUs would start one process a GPU.
        defaults = {"KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": ""}
        for name, value in {**defaults, "STRATAGEM_CPU_DEVICES": "", **variables}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return call


def test_arguments_after_the_script_reach_it_untouched(tmp_path: Path) -> None:
    name = script(tmp_path, "import json, sys; print(json.dumps(sys.argv))")
    arguments = ["--replicas", "7", "-m", "--", "--dry-run", "a b", "", "--help", "*"]
    with started(stratagem("run", "--cpu-devices", "1", name, *arguments), tmp_path) as program:
        code, out, _ = program.finish()
    assert code == 0
    assert json.loads(out) == [name, *arguments]


def test_a_module_runs_with_m(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(__name__, __spec__.name, sys.argv[1:])", name="program.py")
    with started(stratagem("run", "--cpu-devices", "1", "-m", "program", "-m", "x"), tmp_path) as program:
        assert program.finish() == (0, "__main__ program ['-m', 'x']\n", "")


def test_replicas_get_their_place_and_their_share_of_the_threads(tmp_path: Path) -> None:
    names = ("RANK", "WORLD_SIZE", "CPU_DEVICES")
    text = f"import os; print(*(os.environ['STRATAGEM_' + name] for name in {names}), os.environ['OMP_NUM_THREADS'])"
    with started(stratagem("run", "--cpu-devices", "2", script(tmp_path, text)), tmp_path) as program:
        code, out, _ = program.finish()
    assert code == 0
    assert sorted(out.splitlines()) == [f"[replica 0/2] 0 2 2 {SHARE}", f"[replica 1/2] 1 2 2 {SHARE}"]


def test_a_backend_that_is_not_set_is_chosen_and_said(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("run", "--dry-run", script(tmp_path, ""), KERAS_BACKEND="")
    assert code == 0
    assert " KERAS_BACKEND=torch " in out
    assert err == "stratagem: KERAS_BACKEND is not set, so the backend is torch\n"


def test_a_backend_that_is_asked_for_wins_over_the_variable(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("run", "--dry-run", "--backend", "jax", "--cpu-devices", "4", script(tmp_path, ""))
    assert (code, err) == (0, "")
    assert out.startswith("1 process\n")  # which holds all devices
    assert " KERAS_BACKEND=jax " in out
    assert " STRATAGEM_CPU_DEVICES=4 " in out


def test_processes_of_jax_share_the_devices(cli: Cli, tmp_path: Path) -> None:
    options = ("--backend", "jax", "--cpu-devices", "4", "--processes", "2")
    code, out, err = cli("run", "--dry-run", *options, script(tmp_path, ""))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "2 processes"
    for rank, line in enumerate(lines[1:]):
        assert line.startswith(f"[process {rank}/2] STRATAGEM_RANK={rank} STRATAGEM_WORLD_SIZE=2 ")
        assert " STRATAGEM_CPU_DEVICES=4 " in line
        assert f" OMP_NUM_THREADS={SHARE} " in line


def test_output_of_processes_of_jax_is_marked_as_a_processs(tmp_path: Path) -> None:
    text = "import os; print(os.environ['STRATAGEM_RANK'])"
    options = ("--backend", "jax", "--cpu-devices", "4", "--processes", "2")
    with started(stratagem("run", *options, script(tmp_path, text)), tmp_path) as program:
        code, out, _ = program.finish()
    assert code == 0
    assert sorted(out.splitlines()) == ["[process 0/2] 0", "[process 1/2] 1"]


def test_the_process_of_jax_that_failed_first_is_named(tmp_path: Path) -> None:
    text = "import os, sys, time; rank = int(os.environ['STRATAGEM_RANK']); time.sleep(5 * rank); sys.exit(7 - rank)"
    options = ("--backend", "jax", "--processes", "3")
    with started(stratagem("run", *options, script(tmp_path, text)), tmp_path) as program:
        code, _, err = program.finish()
    assert code == 7
    assert "process 0/3 failed first: it ended with exit code 7; the other processes were stopped." in err


def test_dry_run_shows_the_command_lines_and_starts_nothing(cli: Cli, tmp_path: Path) -> None:
    name = script(tmp_path, "open('started', 'w')")
    code, out, err = cli("run", "--dry-run", "--cpu-devices", "2", name, "a b", PYTHONUNBUFFERED="")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "2 processes",
        *(
            f"[replica {rank}/2] STRATAGEM_RANK={rank} STRATAGEM_WORLD_SIZE=2 KERAS_BACKEND=torch "
            f"OMP_NUM_THREADS={SHARE} PYTHONUNBUFFERED=1 STRATAGEM_CPU_DEVICES=2 "
            f"{shlex.quote(sys.executable)} {name} 'a b'"
            for rank in (0, 1)
        ),
    ]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "text"),
    [
        (["absent.py"], {}, "stratagem: there is no script 'absent.py' in "),
        (["folder"], {}, "stratagem: 'folder' is a folder, not a script\n  fix: "),
        (["-m", "no_such_module"], {}, "stratagem: there is no module 'no_such_module'\n  fix: "),
        (["--replicas", "0", "x.py"], {}, "Error: Invalid value for '--replicas': "),
        (["--replicas", "two", "x.py"], {}, "Error: Invalid value for '--replicas': "),
        (["--cpu-devices", "-1", "x.py"], {}, "Error: Invalid value for '--cpu-devices': "),
        (["--backend", "tensorflow", "x.py"], {}, "Error: Invalid value for '--backend': "),
        (["--no-such-option", "x.py"], {}, "Error: No such option: --no-such-option"),
        ([], {}, "Error: Missing argument 'SCRIPT'"),
        (["x.py"], {"KERAS_BACKEND": "tensorflow"}, "stratagem: the Keras backend is 'tensorflow'; Stratagem drives "),
        (
            ["--replicas", "3", "--cpu-devices", "2", "x.py"],
            {},
            "stratagem: 3 replicas were asked for, but this host has 2 logical CPU devices\n  fix: ",
        ),
        (["--processes", "0", "x.py"], {}, "Error: Invalid value for '--processes': "),
        (
            ["--processes", "3", "--cpu-devices", "2", "x.py"],
            {},
            "stratagem: 3 processes were asked for, but with torch each of the 2 replicas is one\n  fix: ",
        ),
        (
            ["--backend", "jax", "--processes", "3", "--cpu-devices", "4", "x.py"],
            {},
            "stratagem: 4 devices can't be divided among 3 processes\n  fix: ask for 3 devices",
        ),
        (["x.py"], {"STRATAGEM_CPU_DEVICES": "many"}, "stratagem: STRATAGEM_CPU_DEVICES='many' is not a whole number"),
    ],
    ids=str,
)
def test_a_command_line_that_does_not_work_is_said_in_a_sentence_with_exit_code_2(
    cli: Cli, tmp_path: Path, arguments: list[str], variables: dict[str, str], text: str
) -> None:
    script(tmp_path, "open('started', 'w')", name="x.py")
    (tmp_path / "folder").mkdir()
    code, out, err = cli("run", *arguments, **variables)
    assert (code, out) == (2, "")
    assert text in err
    assert not (tmp_path / "started").exists()


def test_a_mistake_is_said_without_a_traceback(tmp_path: Path) -> None:
    with started(stratagem("run", "absent.py"), tmp_path) as program:
        code, out, err = program.finish()
    assert (code, out) == (2, "")
    assert err == f"stratagem: there is no script 'absent.py' in {os.path.realpath(tmp_path)}\n  fix: check the path\n"


@pytest.mark.parametrize("module", ["stratagem", "stratagem.cli"])
def test_the_version_is_shown(tmp_path: Path, module: str) -> None:
    with started([sys.executable, "-m", module, "--version"], tmp_path) as program:
        code, out, err = program.finish()
    assert (code, err) == (0, "")
    assert out.startswith("stratagem 0.")
