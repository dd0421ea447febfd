# SPDX-License-Identifier: Apache-2.0
"""Processes of a jax job that are killed, fail, end early or do not come: the others say in time who it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import thorough
from tests.processes import script, started, stratagem

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

# The last process does something else than the others, which wait for it in a collective.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import stratagem as distribute
from stratagem.engines import select

last = os.environ["STRATAGEM_RANK"] == "1"
if last and "{event}" == "absent":
    time.sleep(60)
strategy = distribute.MirroredStrategy()

def reduce():
    values = strategy.experimental_distribute_values_from_function(lambda _: np.ones(3, np.float32))
    return strategy.reduce("SUM", values, axis=None)

def step(number):
    import jax
    replicas = select.engine().replicas
    total = jax.shard_map(lambda x: jax.lax.psum(x, "replica"), mesh=replicas.mesh, in_specs=jax.P(),
                          out_specs=jax.P(), check_vma=False)
    return jax.jit(total)(np.ones(1000, np.float32) * number).block_until_ready()

def happens():
    if "{event}" == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if "{event}" == "fails":
        raise ValueError("no more of this")
    if "{event}" == "ends":
        sys.exit()
    if "{event}" == "sleeps":
        time.sleep(60)

begin = time.monotonic()
try:
    reduce()
    if "{where}" == "step":
        step(1)
    if last:
        happens()
    if "{where}" == "step":
        with select.engine().naming_the_lost("a training step"):
            step(2)
    else:
        reduce()
except distribute.errors.StratagemError as error:
    print(type(error).__name__, error.problem)
    print("SECONDS", round(time.monotonic() - begin, 1))
    raise SystemExit(3)
"""
LIMIT_SECONDS = 4.0
SLACK_SECONDS = 6.0
AT = "in all_reduce(SUM) of float32[3] at script.py:"


@pytest.mark.parametrize(
    ("event", "where", "kind", "text"),
    [
        ("killed", "reduce", "WorkerLostError", "died while replica 0 waited " + AT),
        thorough(
            "fails", "reduce", "ReplicaFailedError", "the program of replica 1 failed while replica 0 waited " + AT
        ),
        ("ends", "reduce", "CollectiveMismatchError", "but the program of replica 1 has ended"),
        thorough("sleeps", "reduce", "CollectiveTimeoutError", f"waited 4 seconds {AT}"),
        ("absent", "reduce", "CollectiveTimeoutError", "waited 4 seconds for process 1 of 2 to make its strategy"),
        ("killed", "step", "WorkerLostError", "died while replica 0 waited in a training step"),
        thorough("fails", "step", "ReplicaFailedError", "the program of replica 1 failed while replica 0 waited in a"),
        thorough("ends", "step", "CollectiveMismatchError", "but the program of replica 1 has ended"),
    ],
)
def test_the_others_say_in_time_who_was_lost(tmp_path: Path, event: str, where: str, kind: str, text: str) -> None:
    name = script(tmp_path, PROGRAM.replace("{event}", event).replace("{where}", where))
    variables = {
        "KERAS_BACKEND": "jax",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS": str(LIMIT_SECONDS),
    }
    command = stratagem("run", "--cpu-devices", "2", "--processes", "2", name)
    with started(command, tmp_path, variables) as program:
        code, out, err = program.finish(seconds=90.0)
        program.leaves_nothing(within_seconds=5.0)
    assert code != 0
    said = out + err
    assert kind in said, said
    assert text in said
    if event == "absent":
        return
    (seconds,) = (float(line.rpartition(" ")[2]) for line in out.splitlines() if "SECONDS" in line)
    assert seconds < LIMIT_SECONDS + SLACK_SECONDS


def test_a_process_that_ends_later_than_the_others_may_take_its_time(tmp_path: Path) -> None:
    text = """
    import os, time
    import stratagem as distribute
    with distribute.MirroredStrategy().scope():
        pass
    if os.environ["STRATAGEM_RANK"] == "1":
        time.sleep(4)  # as one does that saves a model
    print("done")
    """
    name = script(tmp_path, text)
    command = stratagem("run", "--cpu-devices", "2", "--processes", "2", name)
    with started(command, tmp_path, {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}) as program:
        code, out, err = program.finish(seconds=90.0)
    assert (code, out.count("done")) == (0, 2), err
