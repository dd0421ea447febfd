# SPDX-License-Identifier: Apache-2.0
"""The pure parts of launch: command lines, GPUs, the backend, last words."""

from __future__ import annotations

import pytest

from stratagem.errors import BackendError
from stratagem.launch import _command, _environment, _failure, _hardware


@pytest.mark.parametrize(
    ("line", "kind", "script"),
    [
        ("python", "none", None),
        ("python -", "none", None),
        ("python -i", "none", None),
        ("python - x.py", "none", None),
        ("python x.py -c", "script", "x.py"),
        ("python -u -O x.py", "script", "x.py"),
        ("python -X dev -W error x.py", "script", "x.py"),
        ("python -Xdev -Werror x.py", "script", "x.py"),
        ("python -uX dev x.py", "script", "x.py"),
        ("python --check-hash-based-pycs always x.py", "script", "x.py"),
        ("python -m x y.py", "m", None),
        ("python -mx", "m", None),
        ("python -um x", "m", None),
        ("python -c pass y.py", "c", None),
        ("python -W error -c pass", "c", None),
        ("python -X dev", "none", None),
    ],
)
def test_a_python_command_line_says_what_it_runs(line: str, kind: str, script: str | None) -> None:
    assert _command.program(line.split()) == _command.Program(kind=kind, script=script)


@pytest.mark.parametrize(
    ("script", "main_file", "directory"),
    [
        ("x.py", "/a/x.py", "/a"),
        ("./b/x.py", "/a/b/x.py", "/a"),
        ("x.py", "/x.py", "/"),
        ("../x.py", "/a/../x.py", None),  # which folder that was is not known
        ("/a/x.py", "/a/x.py", None),
        ("x.py", "/a/other.py", None),
        (None, "/a/x.py", None),
        ("x.py", None, None),
    ],
)
def test_the_folder_that_python_was_started_in_is_found(
    script: str | None, main_file: str | None, directory: str | None
) -> None:
    assert _command.start_directory(script, main_file) == directory


@pytest.mark.parametrize(
    ("visible", "nodes", "count"),
    [
        (None, 0, 0),
        (None, 2, 2),
        ("", 2, 0),
        ("0", 2, 1),
        ("1,0", 2, 2),
        ("0,1", 0, 0),
        ("0,7,1", 2, 1),
        ("-1,0", 2, 0),
        ("GPU-1, MIG-2", 1, 2),
    ],
)
def test_gpus_are_counted_as_cuda_counts_them(visible: str | None, nodes: int, count: int) -> None:
    assert _hardware.count_gpus(visible, [f"/dev/nvidia{index}" for index in range(nodes)]) == count


@pytest.mark.parametrize(
    ("environ", "loaded", "installed", "backend"),
    [
        ({"KERAS_BACKEND": "jax"}, "torch", ["torch"], "jax"),
        ({}, "jax", ["torch", "jax"], "jax"),
        ({}, None, ["torch", "jax"], "torch"),
        ({"KERAS_BACKEND": ""}, None, ["jax"], "jax"),
    ],
)
def test_the_backend_is_what_was_set_or_loaded_or_is_installed(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], loaded: str | None, installed: list[str], backend: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in installed or None)
    assert _environment.choose_backend(environ, loaded=loaded) == backend


def test_no_backend_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match="neither torch nor jax is installed\n  fix: pip install"):
        _environment.choose_backend({})


def test_a_backend_that_stratagem_does_not_drive_is_refused() -> None:
    with pytest.raises(BackendError, match="the Keras backend is 'tensorflow'; Stratagem drives torch and jax"):
        _environment.choose_backend({"KERAS_BACKEND": "tensorflow"})


@pytest.mark.parametrize(
    ("returncode", "code", "text"),
    [
        (3, 3, "ended with exit code 3"),
        (-11, 139, "was killed by SIGSEGV (exit code 139)"),
        (-9, 137, "was killed by SIGKILL (exit code 137; often for want of memory)"),
        (-63, 191, "was killed by signal 63 (exit code 191)"),
    ],
)
def test_a_return_code_is_said_in_words_and_as_shells_have_it(returncode: int, code: int, text: str) -> None:
    assert _failure.exit_code(returncode) == code
    assert _failure.describe(returncode) == text


ONE = "Traceback (most recent call last):\n  File 'a'\nKeyError: 1"
TWO = "Traceback (most recent call last):\n  File 'b'\nValueError: 2"
CHAIN = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (f"noise\n{ONE}\n", ONE),
        (f"{ONE}\n\n{TWO}\n\n", TWO),
        (f"{TWO}\nnoise\n{ONE}{CHAIN}{TWO}", f"{ONE}{CHAIN}{TWO}"),
        (f"cut off{CHAIN}{TWO}", TWO),
        ("a\nb", "a\nb"),
        ("\n".join("x" * 30), "\n".join("x" * 20)),
        ("", ""),
    ],
)
def test_last_words_are_the_last_traceback_with_its_causes_or_the_last_lines(text: str, last: str) -> None:
    assert _failure.last_words(text.encode()) == last
