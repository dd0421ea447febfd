# SPDX-License-Identifier: Apache-2.0
"""A job of two workers with a replica each, which answers the questions of several tests in one start."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import script, started, stratagem

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 120.0
PROGRAM = """
    import stratagem

    strategy = stratagem.MultiWorkerMirroredStrategy()
    with strategy.scope():
        pass

    from tests import two_workers

    two_workers.answer(strategy)
"""


@dataclass(frozen=True)
class Answers:
    """What each worker found, by question, and what both wrote to stderr."""

    found: list[dict[str, Any]]
    err: str


def answer(strategy: Any) -> None:
    """Ask everything, and leave what was found in a file; runs in the workers' processes."""
    from tests.golden import worker_probes
    from tests.integration import worker_reports

    found = {
        "report_17": worker_reports.said_of_a_data_set(strategy),
        "report_22": worker_reports.epochs_of_other_lengths(strategy),
        "datasets": worker_probes.datasets(strategy),
        "variables": worker_probes.variables(strategy),
    }
    Path(f"found-{strategy.cluster_resolver.task_id}").write_bytes(pickle.dumps(found))


def ask(engine: str, folder: Path) -> Answers:
    """Start the job and wait for its end."""
    variables = {
        "KERAS_BACKEND": engine,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "TF_CPP_MIN_LOG_LEVEL": "1",  # warnings are wanted: there are to be none about shards
    }
    command = stratagem("run", "--workers", "2", "--cpu-devices", "1", script(folder, PROGRAM))
    with started(command, folder, variables) as program:
        code, _, err = program.finish(LIMIT_SECONDS)
    assert code == 0, err
    return Answers([pickle.loads((folder / f"found-{task}").read_bytes()) for task in (0, 1)], err)
