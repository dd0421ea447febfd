# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, with few steps, and print what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.thorough
def test_step_time_compares_all_contestants() -> None:
    output = _run("step_time.py", "--model", "mlp", "--starts", "1", "--rounds", "1", "--steps", "2")
    times = {row[0]: float(row[4]) for row in _rows(output, columns=6)}
    assert list(times) == ["a", "b", "b0", "c", "c0", "d", "d1", "e"]
    assert all(milliseconds > 0 for milliseconds in times.values())

    ratios = {row[0]: float(row[2]) for row in _rows(output, columns=4)}
    assert list(ratios) == ["c/d", "c0/d", "c/d1", "b/a", "b0/a", "c/a", "e/c"]
    for name, ratio in ratios.items():
        above, below = name.split("/")
        # In one round the median ratio is that of the times, which are rounded.
        assert ratio == pytest.approx(times[above] / times[below], rel=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_step_time_on_jax_compares_the_loops_of_two_devices(model: str) -> None:
    options = ("--model", model, "--starts", "1", "--rounds", "1", "--steps", "2", "--only", "s2", "h2", "k2")
    output = _run("step_time_jax.py", *options)
    times = {row[0]: float(row[4]) for row in _rows(output, columns=6)}
    assert list(times) == ["s2", "h2", "k2"]
    assert all(milliseconds > 0 for milliseconds in times.values())
    assert [row[0] for row in _rows(output, columns=4)] == ["s2/h2", "s2/k2"]


def test_all_reduce_measures_each_size() -> None:
    output = _run("all_reduce.py", "--sizes", "1", "2", "--rounds", "2")
    rows = _rows(output, columns=10)
    assert [row[0] for row in rows] == ["1", "2"]
    for row in rows:
        assert all(float(ratio) > 0 for ratio in row[6:])
        for way in row[1:6]:
            median, least, rate = map(float, way.split(","))
            assert median >= least > 0
            assert rate > 0


def _rows(output: str, *, columns: int) -> list[list[str]]:
    """The cells of the tables with so many columns, without their headings."""
    lines = [line for line in output.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ruled = [index for index, row in enumerate(cells) if set(row) == {"---"}]
    headings = {index for rule in ruled for index in (rule - 1, rule)}
    return [row for index, row in enumerate(cells) if len(row) == columns and index not in headings]


def _run(script: str, *options: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATAGEM_")}
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"^machine: .+, \d+ cores, .+\nversions: Python .+ torch ", done.stdout, re.MULTILINE)
    return done.stdout
