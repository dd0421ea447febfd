# SPDX-License-Identifier: Apache-2.0
"""What a second worker costs: MobileNetV2 on workers that have one core each, all with the same rows a replica.

    python benchmarks/two_workers.py --rounds 3

Three ways take turns, each in fresh processes pinned to a core: one worker alone; two workers of a cluster; and two
workers at the same time that know nothing of each other, which shows what the machine itself costs. A worker's figure
is the median of its steps but the first three; of two workers the slower one's counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import _machine

from stratagem import launch

_ROWS = 16
_LIMIT_SECONDS = 600.0
_WARM_UP_STEPS = 3
_WAYS = ("alone", "cluster", "apart")


def main() -> None:
    args = _arguments()
    print(f"{args.backend}, MobileNetV2 {args.image_size} x {args.image_size}, {_ROWS} rows a worker, one core each")
    print(_machine.describe(), flush=True)
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(args.rounds):
        for way in _WAYS:
            found[way].append(_measure(way, args))
            print(f"  {way}: {found[way][-1]:.1f} ms", flush=True)
    medians = {way: statistics.median(times) for way, times in found.items()}
    print(
        "\n| "
        + " | ".join(f"{way}: median ms a step (min - max)" for way in _WAYS)
        + " | alone / cluster | apart / cluster |"
    )
    print("| --- " * (len(_WAYS) + 2) + "|")
    cells = [f"{medians[way]:.1f} ({min(times):.1f} - {max(times):.1f})" for way, times in found.items()]
    ratios = [f"{medians[way] / medians['cluster']:.3f}" for way in ("alone", "apart")]
    print("| " + " | ".join([*cells, *ratios]) + " |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(way: str, args: argparse.Namespace) -> float:
    count = 1 if way == "alone" else 2
    ports = launch.free_ports(count)
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    workers = []
    for index in range(count):
        own = {"KERAS_BACKEND": args.backend, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if way == "cluster":
            own["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        command = ["taskset", "-c", str(index), sys.executable, __file__, "--worker", "--steps", str(args.steps)]
        command += ["--image-size", str(args.image_size)]
        workers.append(
            subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        )
    return max(float(worker.communicate(timeout=_LIMIT_SECONDS)[0].splitlines()[-1]) for worker in workers)


def _train(args: argparse.Namespace) -> None:
    """Be a worker: print the milliseconds of a step."""
    import time
    from typing import Any

    import keras
    import numpy as np

    import stratagem

    class Times(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

    strategy = stratagem.MultiWorkerMirroredStrategy()
    rows = _ROWS * strategy.num_replicas_in_sync
    draw = np.random.default_rng(0)
    shape = (args.image_size, args.image_size, 3)
    x = draw.random((rows * args.steps, *shape), dtype=np.float32)
    y = draw.integers(0, 2, rows * args.steps)
    with strategy.scope():
        make: Any = keras.applications.MobileNetV2  # its annotation refuses weights=None
        model = make(input_shape=shape, weights=None, classes=2)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    times = Times()
    model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, callbacks=[times])
    steps = np.diff(times.ends)[_WARM_UP_STEPS:]
    print(1e3 * float(np.median(steps)))


if __name__ == "__main__":
    _train(_arguments()) if "--worker" in sys.argv else main()
