# SPDX-License-Identifier: Apache-2.0
"""SIGTERM ends a jax job of several processes at once, in the middle of training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(150)]

STRATAGEM = Path(sys.executable).with_name("stratagem")
SECONDS = 10.0
SCRIPT = """
import keras, numpy as np, stratagem
with stratagem.MirroredStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
def say(epoch, logs):
    if epoch == 1:
        print("training", flush=True)
started = keras.callbacks.LambdaCallback(on_epoch_begin=say)
model.fit(np.ones((64, 2)), np.ones((64, 1)), epochs=1_000_000, verbose=0, callbacks=[started])
"""


def test_sigterm_ends_the_training_of_several_processes_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [str(STRATAGEM), "run", "--backend", "jax", "--cpu-devices", "2", "--processes", "2", "train.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATAGEM_")}
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    try:
        assert any("training" in line for line in job.stdout), "it ended before it trained"
        job.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        job.communicate(timeout=60)
        assert job.returncode == 128 + signal.SIGTERM
        assert time.monotonic() - sent < SECONDS
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
