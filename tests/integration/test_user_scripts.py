# SPDX-License-Identifier: Apache-2.0
"""A script written for tf.distribute runs when its `tf.distribute` is replaced, started in either way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import ENGINES

SCRIPTS = Path(__file__).parent / "scripts"
STRATAGEM = Path(sys.executable).with_name("stratagem")

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("command", "variables"),
    [
        pytest.param([str(STRATAGEM), "run", "--cpu-devices", "2"], {}, id="stratagem-run"),
        pytest.param([sys.executable], {"STRATAGEM_CPU_DEVICES": "2"}, id="plain-python"),
    ],
)
def test_overview_trains_on_two_devices(command: list[str], variables: dict[str, str], engine: str) -> None:
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


def _run(command: list[str], variables: dict[str, str]) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STRATAGEM_")}
    environment = {**inherited, "PYTHONUTF8": "1", **variables}
    done = subprocess.run(
        command, cwd=SCRIPTS, env=environment, capture_output=True, encoding="utf-8", timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
