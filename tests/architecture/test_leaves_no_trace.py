# SPDX-License-Identifier: Apache-2.0
"""The check in tests/conftest.py that a test leaves no trace does find traces."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

_LEAKS = """
import os, subprocess, sys, threading, time
from stratagem._core import contexts

def test_nothing():
    os.environ["HELLO"] = "1"
    del os.environ["HELLO"]

def test_variable():
    os.environ["HELLO"] = "1"

def test_changed_variable():
    os.environ["PATH"] += ":/somewhere"

def test_thread():
    threading.Thread(target=time.sleep, args=(1.0,), name="late").start()

def test_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"])

def test_context():
    contexts.push(contexts.Context(None))
"""

_EXPECTED = {
    "test_variable": "the environment variable HELLO (None -> '1')",
    "test_changed_variable": "the environment variable PATH",
    "test_thread": "the thread late",
    "test_process": "the child process",
    "test_context": "1 entries of the context stack",
}


def test_what_a_test_leaves_behind_is_named(root: Path, tmp_path: Path) -> None:
    conftest = (root / "tests" / "conftest.py").read_text()
    assert "\nGRACE_SECONDS = 3.0\n" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace("GRACE_SECONDS = 3.0", "GRACE_SECONDS = 0.2"))
    (tmp_path / "test_leaks.py").write_text(_LEAKS)
    shutil.copy(root / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", "test_leaks.py"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "6 passed, 5 errors" in output
    for name, trace in _EXPECTED.items():
        assert re.search(rf"{name} left behind: {re.escape(trace)}", output), f"{name}: {trace}\n{output}"
