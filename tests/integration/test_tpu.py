# SPDX-License-Identifier: Apache-2.0
"""A program for a TPU, where there is none: what it says, and that the line which it names runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stratagem.cluster_resolver import _tpu_hardware
from tests.processes import script, started, stratagem

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(_tpu_hardware.look({}).num_chips), reason="this machine has a TPU"),
]

PROGRAM = """
import keras
import numpy as np
import stratagem as distribute

resolver = distribute.cluster_resolver.TPUClusterResolver(tpu="")
distribute.config.experimental_connect_to_cluster(resolver)
distribute.tpu.experimental.initialize_tpu_system(resolver)
strategy = distribute.TPUStrategy(resolver)
print("replicas:", strategy.num_replicas_in_sync)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.5), "mse")
losses = model.fit(np.ones((16, 3)), np.ones(16), batch_size=8, verbose=0, shuffle=False).history["loss"]
print("loss:", round(losses[0], 3), "bias:", round(float(model.layers[0].bias.value[0]), 3))
"""


def test_the_error_names_a_line_that_runs_the_program(tmp_path: Path) -> None:
    name = script(tmp_path, PROGRAM)
    with started([sys.executable, name], tmp_path, {"KERAS_BACKEND": "jax"}) as program:
        code, out, err = program.finish()
    assert (code, out) == (1, "")
    assert "DeviceError: no TPU is attached to this machine. Looked for: " in err
    (line,) = (line for line in err.splitlines() if "stratagem run" in line)
    _, _, arguments = line.partition("stratagem run ")
    with started(stratagem("run", *arguments.split()), tmp_path, {"KERAS_BACKEND": ""}) as program:
        out, err = program.process.communicate(timeout=100)
    assert program.process.returncode == 0, err
    # From zero weights and rows of ones, a step of 0.5 overshoots: 4 terms of 1 each make 4, so the second loss is 9.
    assert out.splitlines() == ["replicas: 8", "loss: 5.0 bias: -2.0"]
    assert "8 CPU devices stand in for a TPU" in err


def test_torch_is_told_that_tpus_need_jax(tmp_path: Path) -> None:
    variables = {"KERAS_BACKEND": "torch", "STRATAGEM_CPU_DEVICES": "2"}
    with started([sys.executable, script(tmp_path, PROGRAM)], tmp_path, variables) as program:
        code, _, err = program.finish()
    assert code == 1
    assert "BackendError: TPUStrategy needs one process that drives all devices of a TPU" in err
    assert "fix: run the script with KERAS_BACKEND=jax" in err
