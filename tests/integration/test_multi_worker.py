# SPDX-License-Identifier: Apache-2.0
"""Several processes with jax: those that `stratagem run` starts, and the tasks of TF_CONFIG."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engines import thorough
from tests.processes import Program, script, started, stratagem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

JAX = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3", "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS": "20"}
SHOW = """
import numpy as np
import stratagem as distribute
strategy = distribute.{kind}()
values = strategy.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group))
total = float(strategy.reduce("SUM", values, axis=None))
drawn = np.random.rand()  # the same in all processes, once a strategy was used
print("RESULT", strategy.num_replicas_in_sync, total, round(drawn, 6), *strategy.extended.worker_devices)
"""


def results(out: str) -> list[str]:
    """What the processes of a job printed with RESULT before it."""
    return [line.partition("RESULT ")[2] for line in out.splitlines() if "RESULT" in line]


@pytest.mark.parametrize("kind", ["MirroredStrategy", "MultiWorkerMirroredStrategy"])
@pytest.mark.parametrize("processes", [1, 2, thorough(4)])
def test_a_strategy_spans_the_processes_of_its_job(tmp_path: Path, kind: str, processes: int) -> None:
    name = script(tmp_path, SHOW.format(kind=kind))
    command = stratagem("run", "--cpu-devices", "4", "--processes", str(processes), name)
    with started(command, tmp_path, JAX) as program:
        code, out, err = program.finish(seconds=90.0)
    assert code == 0, err
    lines = results(out)
    assert len(lines) == processes
    assert len(set(lines)) == 1
    count, total, _, *devices = lines[0].split()
    assert (count, total) == ("4", "6.0")
    assert [device[-5:] for device in devices] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def tf_config(chief_port: int, task_type: str, index: object) -> dict[str, str]:
    cluster = {"chief": [f"localhost:{chief_port}"], "worker": ["localhost:1"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})}


def finish(programs: Sequence[Program]) -> list[tuple[int, str, str]]:
    return [program.finish(seconds=90.0) for program in programs]


def test_the_tasks_of_tf_config_train_together(tmp_path: Path) -> None:
    name, port = script(tmp_path, SHOW.format(kind="MultiWorkerMirroredStrategy")), free_port()
    with contextlib.ExitStack() as opened:
        programs = [
            opened.enter_context(
                started(
                    [sys.executable, name],
                    tmp_path,
                    {**JAX, **tf_config(port, task, index), "STRATAGEM_CPU_DEVICES": "2"},
                )
            )
            # The worker comes first, and has to wait; some cluster managers write the index as a string.
            for task, index in (("worker", "0"), ("chief", 0))
        ]
        found = finish(programs)
    assert [code for code, _, _ in found] == [0, 0], found
    lines = [results(out)[0] for _, out, _ in found]
    assert lines[0] == lines[1]
    count, total, _, *devices = lines[0].split()
    assert (count, total) == ("4", "6.0")
    assert [device.removeprefix("/job:worker/replica:0/task:") for device in devices] == [
        "0/device:CPU:0",
        "0/device:CPU:1",
        "1/device:CPU:0",
        "1/device:CPU:1",
    ]


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("chief", "/chief:0 waited 2 seconds for /worker:0 (localhost:1) to connect to localhost:{port}"),
        ("worker", "/worker:0 waited 2 seconds for /chief:0 at localhost:{port}: nobody listens there"),
    ],
)
def test_a_task_that_is_alone_says_whom_it_waited_for(tmp_path: Path, task: str, text: str) -> None:
    name, port = script(tmp_path, SHOW.format(kind="MultiWorkerMirroredStrategy")), free_port()
    variables = {**JAX, **tf_config(port, task, 0), "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS": "2"}
    with started([sys.executable, name], tmp_path, variables) as program:
        code, _, err = program.finish(seconds=90.0)
    assert code == 1
    assert f"CollectiveTimeoutError: {text.format(port=port)}\n  fix: " in err


def test_a_process_in_which_jax_started_too_early_says_so(tmp_path: Path) -> None:
    name = script(tmp_path, "import jax; jax.numpy.ones(1)\n" + SHOW.format(kind="MirroredStrategy"))
    with started(stratagem("run", "--processes", "2", name), tmp_path, JAX) as program:
        code, _, err = program.finish(seconds=90.0)
    assert code == 1
    assert "ContextError: jax has started before this process joined its job" in err
    assert "fix: make the strategy before anything computes with jax" in err
