# SPDX-License-Identifier: Apache-2.0
"""The small examples run as their first line says, and a replica that ends early is the one that is blamed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import ENGINES, num_processes, thorough

STRATAGEM = Path(sys.executable).with_name("stratagem")
EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def run(script: Path, replicas: int, engine: str = "torch") -> subprocess.CompletedProcess[str]:
    """The script, as a user starts it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STRATAGEM_")}
    return subprocess.run(
        [str(STRATAGEM), "run", "--cpu-devices", str(replicas), str(script)],
        env={**inherited, "KERAS_BACKEND": engine},
        capture_output=True,
        encoding="utf-8",
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("engine", [thorough("torch"), "jax"])
def test_the_custom_loop_prints_the_same_losses_for_any_number_of_replicas(engine: str) -> None:
    printed = []
    for replicas in (1, 2):
        done = run(EXAMPLES / "custom_loop.py", replicas, engine)
        assert done.returncode == 0, done.stderr
        printed.append([float(loss) for loss in re.findall(r"epoch \d: loss of the last batch ([\d.]+)", done.stdout)])
    assert len(printed[0]) == 3
    assert printed[0] == pytest.approx(printed[1], abs=2e-4)
    assert printed[0][-1] < printed[0][0] / 2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_loop_of_each_framework_learns_to_read_digits_as_on_one_device(engine: str) -> None:
    done = run(EXAMPLES / f"custom_loop_{engine}.py", 2, engine)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"accuracy on held back digits ([\d.]+)$", done.stdout, re.MULTILINE)
    (difference,) = re.findall(r"weight from training on one device ([\d.e+-]+)$", done.stdout, re.MULTILINE)
    assert float(accuracy) > 0.8
    assert 0 < float(difference) < 1e-5
    assert done.stdout.count("epoch 4: loss of the last batch") == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_the_quickstart_runs(engine: str) -> None:
    done = run(EXAMPLES / "quickstart.py", 2, engine)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Number of devices: 2") == num_processes(engine, 2)
    assert done.stdout.count("Epoch 3/3") == 1


@pytest.mark.thorough  # tests/chaos/test_lost_replicas.py has the same with plain Python
def test_a_replica_that_ends_early_gives_the_exit_code_and_not_the_one_that_waited_for_it(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text(
        "import sys, numpy as np, stratagem\n"
        "strategy = stratagem.MirroredStrategy()\n"
        "one = strategy.run(lambda: stratagem.get_replica_context().replica_id_in_sync_group)\n"
        "if strategy.experimental_local_results(one)[0] == 1:\n"
        "    sys.exit(5)\n"
        "strategy.reduce('SUM', one, axis=None)\n"
    )
    for _ in range(3):
        done = run(script, 2)
        assert done.returncode == 5, done.stderr
        assert "replica 1/2" in done.stderr.splitlines()[-1] or "replica 1/2 failed first" in done.stderr
