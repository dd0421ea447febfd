# SPDX-License-Identifier: Apache-2.0
"""Loops of one's own in a cluster: SIGTERM to any worker saves one step on all, and the job goes on from it.

A job of two workers with two devices each trains under a PreemptionCheckpointHandler. On torch a worker
is two processes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import script, started, stratagem

STEPS = 40
STRUCK_AT = 5

PROGRAM = """
import contextlib, json, os, random, signal, sys, time
import keras
import numpy as np
import stratagem as distribute

victim, grace_seconds = int(sys.argv[1]), float(sys.argv[2])
random.seed(7)  # keras.utils.set_random_seed would import TensorFlow, which takes seconds
np.random.seed(7)
if keras.backend.backend() == "torch":
    import torch

    torch.manual_seed(7)
strategy = distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01))
    model.optimizer.build(model.trainable_variables)
draw = np.random.default_rng(3)
x = draw.normal(size=(8 * STEPS, 6)).astype("float32")
y = draw.normal(size=(8 * STEPS, 1)).astype("float32")
config = distribute.experimental.TerminationConfig(grace_period=grace_seconds or None)
handler = distribute.experimental.PreemptionCheckpointHandler(
    None, distribute.Checkpoint(model=model), "checkpoints", config
)


def loss(x, y):
    return distribute.compute_average_loss(keras.ops.square(model(x) - y)[:, 0], global_batch_size=8)


def step(x, y):
    _, gradients = distribute.value_and_grad(loss, model.trainable_variables)(x, y)
    model.optimizer.apply(gradients, model.trainable_variables)


begun_at = handler.total_run_calls
rest = [(x[at : at + 8], y[at : at + 8]) for at in range(8 * begun_at, 8 * STEPS, 8)]
for batch in strategy.experimental_distribute_dataset(rest):
    handler.run(strategy.run, step, batch)
    if handler.total_run_calls == STRUCK_AT and task == victim and begun_at == 0:
        with contextlib.suppress(FileExistsError):  # by another process of this worker
            open("struck", "x").close()
            os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.05)  # the workers agree on a step within a moment, which is not to be the loop's end
weights = [weight.tolist() for weight in model.get_weights()]
with open(f"result-{task}-{os.getpid()}.json", "w") as file:
    json.dump({"begun_at": begun_at, "runs": handler.total_run_calls, "weights": weights}, file)
"""


def results(folder: Path, engine: str, victim: int, grace_seconds: float, restarts: int) -> tuple[list[Any], str]:
    """What all processes came to, and what was said."""
    folder.mkdir(exist_ok=True)
    name = script(folder, PROGRAM.replace("STEPS", str(STEPS)).replace("STRUCK_AT", str(STRUCK_AT)))
    command = stratagem("run", "--workers", "2", "--cpu-devices", "2", "--max-restarts", str(restarts))
    command += [name, str(victim), str(grace_seconds)]
    with started(command, folder, {"KERAS_BACKEND": engine, "TF_CPP_MIN_LOG_LEVEL": "3"}) as program:
        code, _, err = program.finish(seconds=120.0)
        program.leaves_nothing(within_seconds=8.0)
    assert code == 0, err
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    assert len(found) == (4 if engine == "torch" else 2)
    return found, err


def case(engine: str, victim: int, grace_seconds: float, *, short: bool = False) -> Any:
    marks = [] if short else [pytest.mark.chaos_matrix]
    return pytest.param(engine, victim, grace_seconds, marks=marks, id=f"{engine}-{victim}-{grace_seconds}")


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("engine", "victim", "grace_seconds"),
    [
        case("torch", 0, 0.0),
        case("torch", 1, 0.0),
        case("torch", 1, 3.0),
        case("jax", 0, 0.0),
        case("jax", 1, 0.0, short=True),
        case("jax", 1, 3.0),
    ],
)
def test_sigterm_to_one_worker_saves_the_same_step_on_all_and_the_loop_ends_as_one_that_never_stopped(
    tmp_path: Path, engine: str, victim: int, grace_seconds: float
) -> None:
    found, err = results(tmp_path / "struck", engine, victim, grace_seconds, restarts=1)
    undisturbed, _ = results(tmp_path / "undisturbed", engine, -1, 0.0, restarts=0)
    assert "told to stop, and has saved where it stood" in err
    begun_at = found[0]["begun_at"]
    assert STRUCK_AT <= begun_at < STEPS
    for one, other in zip(found, undisturbed, strict=True):
        assert (one["begun_at"], other["begun_at"]) == (begun_at, 0)
        assert one["runs"] == other["runs"] == STEPS
        assert one["weights"] == other["weights"] == undisturbed[0]["weights"]
