# SPDX-License-Identifier: Apache-2.0
"""`MultiWorkerMirroredStrategy` on a cluster: exact results, whoever starts the workers; what one says that waits."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import thorough
from tests.network import Network, three_hosts
from tests.processes import Program, script, started, stratagem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

SECONDS = 120.0
TRAIN = """
import json, os, random, sys
import keras, numpy as np
import stratagem as distribute
{before}
random.seed(5)  # keras.utils.set_random_seed would import TensorFlow, which takes seconds
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
draw = np.random.default_rng(1)
x, y = draw.normal(size=(50, 4)).astype("float32"), draw.normal(size=(50, 1)).astype("float32")
history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
print("RESULT", json.dumps([strategy.num_replicas_in_sync, history, [w.tolist() for w in model.get_weights()]]))
"""
CLUSTER = TRAIN.format(before="strategy = distribute.MultiWorkerMirroredStrategy()")
ALONE = TRAIN.format(before="strategy = distribute.get_strategy()")


def variables(engine: str) -> dict[str, str]:
    return {"KERAS_BACKEND": engine, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


def results(out: str) -> list[Any]:
    return [json.loads(line.partition("RESULT ")[2]) for line in out.splitlines() if "RESULT" in line]


def assert_that_of_one_device(found: list[Any], replicas: int, folder: Path, engine: str) -> None:
    with started([sys.executable, script(folder, ALONE, "alone.py")], folder, variables(engine)) as program:
        code, out, err = program.finish(SECONDS)
    assert code == 0, err
    ((_, history, weights),) = results(out)
    for count, its_history, its_weights in found:
        assert count == replicas
        for name, values in history.items():
            assert its_history[name] == pytest.approx(values, rel=1e-5)
        for mine, theirs in zip(its_weights, weights, strict=True):
            assert _flat(mine) == pytest.approx(_flat(theirs), abs=1e-5)


def _flat(nested: Any) -> list[float]:
    return [nested] if isinstance(nested, float) else [number for part in nested for number in _flat(part)]


@pytest.mark.parametrize("engine", [thorough("torch"), "jax"])
def test_workers_of_several_devices_train_as_one_device(tmp_path: Path, engine: str) -> None:
    logs = tmp_path / "logs"
    command = stratagem(
        "run", "--workers", "2", "--cpu-devices", "2", "--log-dir", str(logs), script(tmp_path, CLUSTER)
    )
    with started(command, tmp_path, variables(engine)) as program:
        code, out, err = program.finish(SECONDS)
        program.leaves_nothing(within_seconds=5.0)
    assert code == 0, err
    found = results(out)
    assert len(found) == (4 if engine == "torch" else 2)  # with torch each replica is a process, and prints
    assert_that_of_one_device(found, 4, tmp_path, engine)
    for worker in (0, 1):
        assert results((logs / f"worker-{worker}.log").read_text())


TRANSPORT = """
from stratagem.engines import select
print("TRANSPORT", type(select.engine().transport).__name__)
"""


@pytest.mark.parametrize("engine", ["torch", thorough("jax")])
def test_workers_of_one_host_share_memory_and_save_together_also_under_names_of_their_own(
    tmp_path: Path, engine: str
) -> None:
    text = (
        CLUSTER
        + """
task = strategy.cluster_resolver.task_id
model.save(f"own-{task}.keras")  # as programs for TensorFlow do, where every worker has to write
model.predict(x, verbose=0)
model.save(f"folder-{task}/same.keras" if task == 0 else "folder-0/same.keras")
assert os.path.getsize("folder-0/same.keras")
"""
    )
    if engine == "torch":
        text += TRANSPORT
    (tmp_path / "folder-0").mkdir()
    with started(stratagem("run", "--workers", "2", script(tmp_path, text)), tmp_path, variables(engine)) as program:
        code, out, err = program.finish(SECONDS)
    assert code == 0, err
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == ["own-0.keras"]
    assert engine == "jax" or out.count("TRANSPORT SharedMemoryTransport") == 2


MISFITS = {
    "other data": ("default_rng(1)", "default_rng(task)", "process 1 was given other arrays, or another batch size"),
    "fewer rows": ("size=(50, 4)", "size=(50 - 20 * task, 4)", "process 1 has 2 batches an epoch, and process 0 4"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_workers_with_data_of_their_own_are_told_on_jax(tmp_path: Path, misfit: str) -> None:
    old, new, said = MISFITS[misfit]
    text = CLUSTER.replace("draw =", "task = strategy.cluster_resolver.task_id\ndraw =").replace(old, new)
    text = (
        text.replace("size=(50, 1)", "size=(len(x), 1)")
        .replace("x, y = draw", "x = draw")
        .replace('astype("float32"), draw', 'astype("float32"); y = draw')
    )
    with started(stratagem("run", "--workers", "2", script(tmp_path, text)), tmp_path, variables("jax")) as program:
        _, out, err = program.finish(SECONDS)
    assert said in err + out


@pytest.fixture
def network() -> Iterator[Network]:
    with three_hosts() as hosts:
        yield hosts


@contextlib.contextmanager
def on_hosts(network: Network, engine: str, folder: Path, text: str, *options: str) -> Iterator[list[Program]]:
    """A worker on each of two hosts, started there with `stratagem run --hosts`."""
    name = script(folder, text)
    two = network.hosts[:2]
    with contextlib.ExitStack() as opened:
        programs: list[Program] = []
        for index, host in enumerate(two):
            own = folder / f"host-{index}"
            own.mkdir()
            command = stratagem("run", "--hosts", ",".join(one.ip for one in two), "--task-index", str(index), *options)
            # The host's own name stands for 127.0.1.1 there, as Debian has it.
            argv = host.command([*command, str(folder / name)], own, name_stands_for="127.0.1.1")
            programs.append(opened.enter_context(started(argv, own, variables(engine))))
        yield programs


@pytest.mark.parametrize("engine", ["torch", thorough("jax")])
def test_workers_on_two_hosts_train_as_one_device(tmp_path: Path, network: Network, engine: str) -> None:
    with on_hosts(network, engine, tmp_path, CLUSTER) as programs:
        found = [program.finish(SECONDS) for program in programs]
    assert [code for code, _, _ in found] == [0, 0], found
    assert_that_of_one_device([result for _, out, _ in found for result in results(out)], 2, tmp_path, engine)


FOREVER = CLUSTER.replace("epochs=2", "epochs=100000, callbacks=[Tell()]").replace(
    "random.seed(5)",
    """\
class Tell(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            open("trains", "w").close()
random.seed(5)""",
)


@pytest.mark.chaos
@pytest.mark.parametrize("engine", ["torch", thorough("jax")])
def test_when_the_network_is_gone_all_workers_end_in_time_and_name_the_other(
    tmp_path: Path, network: Network, engine: str
) -> None:
    with on_hosts(network, engine, tmp_path, FOREVER, "--failure-timeout", "8") as programs:
        for index in (0, 1):
            programs[index].wait_for(tmp_path / f"host-{index}" / "trains", seconds=60.0)
        time.sleep(1.0)  # for a few signs of each to reach the other
        network.unplug(network.hosts[0])
        found = [program.finish(8.0 + 4.0) for program in programs]
    assert [code for code, _, _ in found] == [75, 75], found
    for index, (_, _, err) in enumerate(found):
        other = f"/worker:{1 - index} ({network.hosts[1 - index].ip}:2222)"
        assert f"WorkerLostError: {other} has been silent for " in err
        assert " seconds ago was at step " in err, err


def test_a_worker_that_waits_says_for_whom(tmp_path: Path) -> None:
    name = script(tmp_path, CLUSTER)
    command = stratagem("run", "--hosts", "localhost:0,localhost:1", "--task-index", "1", name)
    limits = {**variables("torch"), "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS": "4"}
    with started(command, tmp_path, limits) as program:
        code, _, err = program.finish(SECONDS)
    assert code == 1
    assert "/worker:1 waits for /worker:0 at localhost:0, for 2 seconds more" in err


def test_torchrun_starts_workers_too_and_those_of_one_host_share_memory(tmp_path: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    name = script(tmp_path, CLUSTER + TRANSPORT)
    argv = [str(torchrun), "--nproc-per-node", "2", "--master-port", str(_free_port()), name]
    with started(argv, tmp_path, variables("torch")) as program:
        code, out, err = program.finish(SECONDS)
    assert code == 0, err
    assert_that_of_one_device(results(out), 2, tmp_path, "torch")
    assert out.count("TRANSPORT SharedMemoryTransport") == 2


@pytest.mark.parametrize("engine", ["torch", thorough("jax")])
def test_mpirun_starts_workers_too(tmp_path: Path, engine: str) -> None:
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("Open MPI is not installed")
    argv = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, script(tmp_path, CLUSTER)]
    with started(argv, tmp_path, variables(engine)) as program:
        code, out, err = program.finish(SECONDS)
        program.leaves_nothing(within_seconds=5.0)
    assert code == 0, err
    assert_that_of_one_device(results(out), 2, tmp_path, engine)


def _free_port() -> int:
    from stratagem import launch

    return launch.free_ports(1)[0]


@pytest.mark.parametrize("engine", ["torch", thorough("jax")])
def test_options_of_communication_are_heeded(tmp_path: Path, engine: str) -> None:
    text = CLUSTER.replace(
        "MultiWorkerMirroredStrategy()",
        "MultiWorkerMirroredStrategy(communication_options=distribute.experimental.CommunicationOptions("
        "bytes_per_pack=64, timeout_seconds=37, implementation='RING'))",
    )
    text += "\nimport stratagem._core.env as env\nprint('LIMIT', env.collective_timeout_seconds())\n"
    if engine == "torch":
        text += TRANSPORT + "print('PACK', select.engine().transport.bucket_bytes)\n"
    with started(stratagem("run", "--workers", "2", script(tmp_path, text)), tmp_path, variables(engine)) as program:
        code, out, err = program.finish(SECONDS)
    assert code == 0, err
    assert out.count("LIMIT 37.0") == 2
    if engine == "torch":
        assert out.count("PACK 64") == 2
        assert out.count("TRANSPORT ProcessGroupTransport") == 2
    else:
        assert "bytes_per_pack=64 has no effect with jax" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workers", "2", "--hosts", "a,b", "--task-index", "0"], "--workers and --hosts do not go together"),
        (["--workers", "2", "--replicas", "2"], "--workers and --replicas do not go together"),
        (["--hosts", "a,b"], "--hosts and --task-index are given together or not at all"),
        (["--hosts", "a,b", "--task-index", "2"], "there is no worker 2; 2 hosts were named"),
        (["--workers", "1", "--log-dir", "/proc/none"], "the folder '/proc/none' for the output can't be made"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_sentence(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = subprocess.run(
        stratagem("run", *arguments, script(tmp_path, "pass")),
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert text in done.stderr
