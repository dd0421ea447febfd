# SPDX-License-Identifier: Apache-2.0
"""The main job, smaller: it trains, evaluates, and prints its table once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import num_processes, thorough

ROOT = Path(__file__).parents[2]
STRATAGEM = Path(sys.executable).with_name("stratagem")
ROW = re.compile(
    r"\| (?P<name>[\w ]+) \| (?P<processes>\d) x (?P<threads>\d+) \| (?P<batch>\d+) \| (?P<seconds>[\d.]+) "
    r"\| (?P<images>\d+) \| (?P<speed_up>[\d.]+)x \| (?P<efficiency>\d+)% \|"
)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["torch", thorough("jax")])
def test_the_main_job_prints_scores_and_table(engine: str) -> None:
    output = _run(engine, "--image-size", "32", "--epochs", "1", "--table-epochs", "1", "--global-batch", "128")

    (scores,) = re.findall(r"accuracy (0\.\d+), AUC (0\.\d+)", output)
    assert all(0 < float(score) <= 1 for score in scores)
    assert output.count("photos to train on") == 1  # the chief alone speaks

    alone, same_batch, large_batch = (match.groupdict() for match in ROW.finditer(output))
    assert [alone["name"], same_batch["name"], large_batch["name"]] == [
        "no distribution",
        "same global batch",
        "2 times the batch",
    ]
    processes = num_processes(engine, 2)
    assert [int(row["processes"]) for row in (alone, same_batch, large_batch)] == [1, processes, processes]
    assert [int(row["batch"]) for row in (alone, same_batch, large_batch)] == [128, 128, 256]
    for row in (same_batch, large_batch):
        assert int(alone["threads"]) == processes * int(row["threads"])
    assert alone["speed_up"] == "1.00"
    for row in (alone, same_batch, large_batch):
        # Equal threads, so the efficiency is the speed-up; both are rounded.
        assert int(row["efficiency"]) == pytest.approx(100 * float(row["speed_up"]), abs=1.01)


def _run(engine: str, *options: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATAGEM_")}
    done = subprocess.run(
        [str(STRATAGEM), "run", "--cpu-devices", "2", "examples/solar_cells.py", *options],
        cwd=ROOT,
        # What jax compiles runs once: most of what its optimiser would do costs more time than it saves.
        env=environment | {"KERAS_BACKEND": engine, "OMP_NUM_THREADS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
