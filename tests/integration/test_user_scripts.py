# SPDX-License-Identifier: Apache-2.0
"""A script written for tf.distribute runs when its `tf.distribute` is replaced, started in either way."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stratagem import launch
from tests.engines import thorough
from tests.processes import script, started

SCRIPTS = Path(__file__).parent / "scripts"
STRATAGEM = Path(sys.executable).with_name("stratagem")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


STARTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "stratagem run": ([str(STRATAGEM), "run", "--cpu-devices", "2"], {}),
    "plain python": ([sys.executable], {"STRATAGEM_CPU_DEVICES": "2"}),
}


@pytest.mark.parametrize(
    ("engine", "start"),
    [
        ("torch", "plain python"),
        thorough("torch", "stratagem run"),
        ("jax", "stratagem run"),
        thorough("jax", "plain python"),
    ],
)
def test_overview_trains_on_two_devices(engine: str, start: str) -> None:
    command, variables = STARTS[start]
    output = _run([*command, "overview.py"], {**variables, "KERAS_BACKEND": engine})
    plain = re.sub(r"[\b\r]|\x1b\[[0-9;]*m", "", output)
    # With jax there is one process, whose lines need no number before them.
    starts = [rf"\[replica {replica}/2\] " for replica in range(2)] if engine == "torch" else ["^"]
    for start in starts:
        assert re.search(rf"{start}.*: 2$", plain, re.MULTILINE), f"no device count after {start}:\n{plain}"
    assert re.findall(r"Epoch (\d)/3", plain) == ["1", "2", "3"], f"one progress bar is wanted:\n{plain}"
    accuracies = [float(text) for text in re.findall(r"train_accuracy: ([\d.]+)", plain)]
    losses = [float(text) for text in re.findall(r"loss: ([\d.]+)", plain)]
    assert losses[-1] < losses[0]
    assert accuracies[-1] > accuracies[0]


# One line around the script: without it the photos would be downloaded.
WITH_MADE_UP_PHOTOS = """
import runpy, sys
import tensorflow_datasets as tfds

with tfds.testing.mock_data(num_examples=40):
    runpy.run_path(sys.argv[1])
"""


@pytest.mark.parametrize("engine", ["torch", thorough("jax")])  # XLA compiles its model for a minute
def test_multi_worker_trains_on_two_workers(tmp_path: Path, engine: str) -> None:
    pytest.importorskip("tensorflow_datasets")
    text = (SCRIPTS / "multi_worker.py").read_text()
    first, second = launch.free_ports(2)
    small = {"20000": str(first), "20001": str(second), "[224, 224]": "[32, 32]", "num_epochs = 5": "num_epochs = 1"}
    small |= {
        "batch_size_per_replica = 64": "batch_size_per_replica = 8",
        "classes=2": "classes=2, input_shape=(32, 32, 3)",
    }
    for old, new in small.items():
        assert old in text
        text = text.replace(old, new)
    name = script(tmp_path, WITH_MADE_UP_PHOTOS, "around.py")
    variables = {"KERAS_BACKEND": engine, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as opened:
        programs = []
        for index in (0, 1):
            folder = tmp_path / str(index)
            folder.mkdir()
            own = script(folder, text.replace("'index': 0", f"'index': {index}"), "multi_worker.py")
            argv = [sys.executable, str(tmp_path / name), own]
            programs.append(opened.enter_context(started(argv, folder, variables)))
        found = [program.finish(240.0) for program in programs]
    assert [code for code, _, _ in found] == [0, 0], found
    # The progress bar is the chief's; 40 photos are three steps of 16.
    assert "3/3" in found[0][1]
    assert "3/3" not in found[1][1]


def _run(command: list[str], variables: dict[str, str]) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STRATAGEM_")}
    environment = {**inherited, "PYTHONUTF8": "1", **variables}
    done = subprocess.run(
        command, cwd=SCRIPTS, env=environment, capture_output=True, encoding="utf-8", timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
