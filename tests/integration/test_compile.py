# SPDX-License-Identifier: Apache-2.0
"""`stratagem compile` and `strategy.compile_for`: real training steps, compiled for TPUs that are not there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import script, started, stratagem

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the package libtpu"),
]

MIB = 2**20
LIMIT_SECONDS = 240.0

# The same for every test, so that only what differs is read there.
DENSE = """
import sys
import keras
import numpy as np
import stratagem

strategy = stratagem.MirroredStrategy()
print("replicas:", strategy.num_replicas_in_sync)
with strategy.scope():
    model = keras.Sequential([keras.Input((128,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
rows = 8 * strategy.num_replicas_in_sync
x, y = np.zeros((rows, 128)), np.zeros(rows, int)
"""
GRADIENT_BYTES = 4 * (128 * 512 + 512 + 512 * 10 + 10)

NO_SLICE = (
    'INVALID_ARGUMENT: Topology layout "v5e:3x5" is not divisible by the given (or default) chips_per_host_bounds'
)

MOBILENET = """
import keras
import numpy as np
import stratagem

strategy = stratagem.TPUStrategy(stratagem.cluster_resolver.TPUClusterResolver(tpu=""))
with strategy.scope():
    model = keras.applications.MobileNetV2((96, 96, 3), weights=None, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
rows = 32 * strategy.num_replicas_in_sync
model.fit(np.zeros((rows, 96, 96, 3), "float32"), np.zeros(rows, int), batch_size=rows)
"""


def compiled(folder: Path, *arguments: str, limit_seconds: float = LIMIT_SECONDS) -> tuple[int, str, str]:
    """What `stratagem compile` ends with, prints, and says beside it."""
    variables = {"KERAS_BACKEND": "", "JAX_PLATFORMS": ""}
    with started(stratagem("compile", *arguments), folder, variables) as program:
        out, err = program.process.communicate(timeout=limit_seconds)
        return program.process.returncode, out, err


@pytest.mark.parametrize(("topology", "chips"), [("v5e:2x4", 8), ("v5e:4x8", 32)])
@pytest.mark.timeout(300)
def test_the_step_of_a_script_is_compiled_and_not_run(tmp_path: Path, topology: str, chips: int) -> None:
    name = script(tmp_path, DENSE + "model.fit(x, y, batch_size=rows)\nopen('trained', 'w')\n")
    code, out, err = compiled(tmp_path, "--topology", topology, "--json", name)
    assert code == 0, err
    step: Any = json.loads(out)
    assert (step["topology"], step["num_devices"], step["global_batch"]) == (topology, chips, 8 * chips)
    assert f"replicas: {chips}" in err  # what the script prints is beside the JSON
    assert not (tmp_path / "trained").exists()
    assert step["fits"] is True
    assert step["compile_seconds"] > 0
    (all_reduce,) = step["collectives"]
    assert all_reduce["kind"] == "all-reduce"
    # The gradients, and the few numbers of the metrics, in one message.
    assert GRADIENT_BYTES <= all_reduce["num_bytes"] < GRADIENT_BYTES + 4096
    memory = step["memory"]
    # Weights and Adam's two moments, which the new ones take the place of.
    assert 3 * GRADIENT_BYTES < memory["aliased"] <= memory["outputs"] < 4 * GRADIENT_BYTES + MIB
    assert step["needed_bytes"] < step["hbm_bytes"] == 16 * 2**30


@pytest.mark.timeout(300)
def test_a_step_that_does_not_fit_says_by_how_much(tmp_path: Path) -> None:
    text = """
    import keras
    import numpy as np
    import stratagem

    strategy = stratagem.TPUStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1024, 1)), keras.layers.SimpleRNN(1024), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = 4096 * strategy.num_replicas_in_sync
    model.train_on_batch(np.zeros((rows, 1024, 1), "float32"), np.zeros((rows, 1), "float32"))
    """
    code, out, err = compiled(tmp_path, "--topology", "v5e:2x4", script(tmp_path, text))
    assert code == 1, err
    *_, last = out.splitlines()
    # What the backward pass needs of each of the 1024 steps is 16 MiB: 16 GiB at the least.
    assert last.startswith("it does not fit: a chip needs ")
    assert last.endswith(" too little")


@pytest.mark.timeout(300)
def test_rows_that_can_not_be_divided_are_refused_in_a_sentence(tmp_path: Path) -> None:
    name = script(tmp_path, DENSE + "model.fit(x, y, batch_size=int(sys.argv[1]))\n")
    code, out, err = compiled(tmp_path, "--topology", "v5e:2x4", name, "30")
    assert (code, out) == (2, "replicas: 8\n")
    assert "a global batch of 30 rows can't be divided evenly among the 8 replicas of v5e:2x4" in err
    assert "fix: use batches of 32 rows, or of 24" in err
    assert "Traceback" not in err


@pytest.mark.timeout(300)
def test_a_script_without_a_step_and_one_that_fails_are_told_apart(tmp_path: Path) -> None:
    code, _, err = compiled(tmp_path, "--topology", "v5e:2x4", script(tmp_path, DENSE))
    assert code == 2
    assert "script.py ended without a training step of a model that was made under a strategy" in err
    code, _, err = compiled(tmp_path, "--topology", "v5e:2x4", script(tmp_path, "raise SystemExit(7)", "fails.py"))
    assert code == 7
    assert "exit code 7" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--topology", "v5e-8", "script.py"), "fix: name it by its shape: v5e:2x4"),
        (("--topology", "v5e:2x4", "absent.py"), "there is no script 'absent.py'"),
        (("script.py",), "Missing option '--topology'"),
    ],
)
def test_a_command_line_that_does_not_work_is_said_at_once(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    script(tmp_path, "")
    code, out, err = compiled(tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_another_backend_in_the_environment_is_refused(tmp_path: Path) -> None:
    variables = {"KERAS_BACKEND": "torch"}
    with started(stratagem("compile", "--topology", "v5e:2x4", script(tmp_path, "")), tmp_path, variables) as program:
        code, _, err = program.finish()
    assert code == 2
    assert "KERAS_BACKEND=torch, but TPUs need jax" in err


@pytest.mark.timeout(300)
def test_a_program_compiles_for_a_tpu_and_goes_on(tmp_path: Path) -> None:
    # One process for all of it: starting jax and libtpu is most of the time.
    text = (
        DENSE
        + """
import jax

def refused(topology, *, model=model, batch=(x, y)):
    try:
        strategy.compile_for(topology, model, batch)
    except Exception as error:
        print(type(error).__name__, "|", str(error).splitlines()[0])

step = strategy.compile_for("v5e:2x4", model, (jax.ShapeDtypeStruct((512, 128), "float32"), np.zeros(512)))
print("fits:", step.fits, step.global_batch, [c.kind for c in step.collectives])
huge = jax.ShapeDtypeStruct((2**26, 128), "float32"), jax.ShapeDtypeStruct((2**26,), "int32")
print("huge:", strategy.compile_for("v5e:2x4", model, huge).excess_bytes > 0)
with strategy.scope():
    whole = keras.Sequential([keras.layers.Dense(8), keras.layers.BatchNormalization(synchronized=True)])
    whole.compile("sgd", "mse")
    eager = keras.Sequential([keras.Input((128,)), keras.layers.Dense(1)])
print("whole:", len(strategy.compile_for("v4:2x2x1", whole, (np.zeros((8, 3)), np.zeros((8, 8)))).collectives) > 0)
refused("v5e:3x5", batch=(x[:15], y[:15]))
refused("v5e:2x2x2")
refused("v5e:2x4", batch=x)
refused("v5e:2x4", batch=(x[:5], y[:5]))
refused("v5e:2x4", model=eager)
eager.compile("sgd", "mse", run_eagerly=True)
refused("v5e:2x4", model=eager, batch=(np.zeros((8, 128)), np.zeros((8, 1))))
print("loss:", model.fit(x, y, batch_size=rows, verbose=0).history["loss"][0] > 0)
"""
    )
    name = script(tmp_path, text)
    environ = {**os.environ, "KERAS_BACKEND": "jax", "STRATAGEM_CPU_DEVICES": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "replicas: 2",
        "fits: True 512 ['all-reduce']",
        "huge: True",
        "whole: True",
        f"ArgumentError | libtpu knows no slice 'v5e:3x5': {NO_SLICE} \"2x2x1\"",
        "ArgumentError | the shape of 'v5e:2x2x2' has not the 2 dimensions of a v5e slice",
        "ArgumentTypeError | compile_for was given a ndarray for a batch",
        "ArgumentError | a global batch of 5 rows can't be divided evenly among the 8 replicas of v5e:2x4",
        "ContextError | model 'sequential_2' is not compiled, so it has no training step",
        "ArgumentError | model 'sequential_2' runs without being compiled: run_eagerly=True, jit_compile=False",
        "loss: True",
    ]
    assert done.stderr == ""  # libtpu has nothing to say about the TPU that is missing


@pytest.mark.tpu_compile
@pytest.mark.parametrize(("topology", "chips"), [("v5e:2x4", 8), ("v5e:4x8", 32)])
@pytest.mark.timeout(1200)
def test_mobilenet_is_compiled_for_a_slice_of_each_size(tmp_path: Path, topology: str, chips: int) -> None:
    code, out, err = compiled(
        tmp_path, "--topology", topology, "--json", script(tmp_path, MOBILENET), limit_seconds=1100
    )
    assert code == 0, err
    step: Any = json.loads(out)
    assert (step["num_devices"], step["global_batch"], step["fits"]) == (chips, 32 * chips, True)
    weight_bytes = 4 * 2_236_682  # the trainable ones with 10 classes
    assert sum(c["num_bytes"] for c in step["collectives"]) >= weight_bytes
    assert all(c["kind"] == "all-reduce" for c in step["collectives"])
    assert step["needed_bytes"] < 2**30
