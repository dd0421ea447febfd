# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to a worker, and whenever: nobody hangs, the text says who it was, and the job comes to its results.

A job of two workers trains with backups under `stratagem run --max-restarts`. Once, something happens to one of them.
A few cases are part of the suite; `make test-chaos` runs them all.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import script, started, stratagem

FAILURE_SECONDS = 8.0
LIMIT_SECONDS = 120.0
EVENTS = ("SIGKILL", "SIGTERM", "SIGSTOP", "exception")
PLACES = ("start", "step", "save", "evaluate", "exit")
VICTIMS = {"chief": 0, "other": 1}

PROGRAM = """
import contextlib, json, os, random, signal, sys, time
import keras
import numpy as np
import stratagem

event, victim, place = sys.argv[1:]
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with contextlib.suppress(FileNotFoundError):
    os.remove("backup/filler")  # someone has made room


def strike(where):
    if where != place or task != int(victim) or os.path.exists("struck"):
        return
    open("struck", "w").close()
    if event == "exception":
        raise RuntimeError("an error of its own")
    if event == "full disk":
        with open("backup/filler", "wb", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError:
                return
    os.kill(os.getpid(), getattr(signal, event))


def watch(name, arguments):
    # A file of the backup is complete, and is about to get its name.
    if name == "os.rename" and "backup" in str(arguments[1]):
        strike("save")


sys.addaudithook(watch)


class Strikes(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        if self.steps == 3:
            strike("step")

    def on_train_batch_end(self, batch, logs=None):
        if task == 1 and self.steps == 4:
            strike("save")  # which this worker takes no part in: the chief writes

    def on_test_batch_begin(self, batch, logs=None):
        strike("evaluate")


random.seed(7)  # keras.utils.set_random_seed would import TensorFlow, which takes seconds
np.random.seed(7)
if keras.backend.backend() == "torch":
    import torch

    torch.manual_seed(7)
strategy = stratagem.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    )
    # Its sum over an epoch differs if a row is used twice, or not at all.
    rows = keras.metrics.MeanMetricWrapper(lambda y, predicted: y, name="rows")
    model.compile("adam", "mse", metrics=[rows])
draw = np.random.default_rng(3)
x = draw.normal(size=(50, 6)).astype("float32")
y = draw.normal(size=(50, 1)).astype("float32")
strike("start")
backup = stratagem.BackupAndRestore("backup", save_freq=2)
history = model.fit(
    x, y, batch_size=8, epochs=3, validation_data=(x[:20], y[:20]), callbacks=[Strikes(), backup], verbose=0
)
weights = [weight.tolist() for weight in model.get_weights()]
strike("exit")
with open(f"result-{task}.json", "w") as file:
    json.dump({"history": history.history, "weights": weights}, file)
"""


def results(folder: Path, engine: str, event: str, victim: int, place: str, restarts: int = 1) -> tuple[Any, str]:
    """What both workers came to, and what was said."""
    name = script(folder, PROGRAM)
    (folder / "backup").mkdir(exist_ok=True)
    command = stratagem("run", "--workers", "2", "--cpu-devices", "1", "--max-restarts", str(restarts))
    command += ["--failure-timeout", str(FAILURE_SECONDS), name, event, str(victim), place]
    with started(command, folder, {"KERAS_BACKEND": engine, "TF_CPP_MIN_LOG_LEVEL": "3"}) as program:
        code, _, err = program.finish(seconds=LIMIT_SECONDS)
        program.leaves_nothing(within_seconds=8.0)
    assert code == 0, err
    found = [json.loads((folder / f"result-{task}.json").read_text()) for task in (0, 1)]
    assert found[0] == found[1]
    return found[0], err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By engine, what a run comes to that nothing happens to; made when it is first asked for."""

    class Found(dict[str, Any]):
        def __missing__(self, engine: str) -> Any:
            self[engine], _ = results(tmp_path_factory.mktemp(engine), engine, "none", 0, "nowhere", restarts=0)
            return self[engine]

    return Found()


def cases() -> Iterator[Any]:
    short = {("torch", "SIGKILL", "other", "step")}  # jax's restarts are in tests/integration/test_recovery.py too
    for engine in ("torch", "jax"):
        for event in EVENTS:
            for victim in VICTIMS:
                for place in PLACES:
                    case = (engine, event, victim, place)
                    marks = [] if case in short else [pytest.mark.chaos_matrix]
                    yield pytest.param(*case, marks=marks, id="-".join(case))


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("engine", "event", "victim", "place"), list(cases()))
def test_the_job_comes_to_the_results_of_one_that_nothing_happened_to(
    tmp_path: Path, undisturbed: dict[str, Any], engine: str, event: str, victim: str, place: str
) -> None:
    expected = undisturbed[engine]
    found, err = results(tmp_path, engine, event, VICTIMS[victim], place)
    assert (tmp_path / "struck").exists()
    assert found == expected
    assert "stratagem: the job begins again" in err
    named = f"worker {VICTIMS[victim]}/2 failed first" in err or f"/worker:{VICTIMS[victim]} (localhost:" in err
    assert named, err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "backup"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, timeout=20, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], timeout=20, check=True)


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.chaos_matrix)])
def test_a_job_whose_disk_was_full_comes_to_the_same_results_once_there_is_room(
    tmp_path: Path, small_disk: Path, undisturbed: dict[str, Any], engine: str
) -> None:
    found, err = results(tmp_path, engine, "full disk", 0, "step")
    assert found == undisturbed[engine]
    assert os.strerror(28) in err
    assert str(small_disk.name) in err
