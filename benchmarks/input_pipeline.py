# SPDX-License-Identifier: Apache-2.0
"""What a distributed data set adds to a step.

    KERAS_BACKEND=jax STRATAGEM_CPU_DEVICES=2 OMP_NUM_THREADS=1 python benchmarks/input_pipeline.py

Two figures. In memory: steps of a millisecond fed by an `ArrayDataset`, against the same steps that are given one batch
again and again. Slow: a pipeline that takes as long to make a batch as the step, read in the background, against the
larger of the pipeline alone and the steps alone. A step is a pause, as it is for Python while the
devices work, after which the replicas meet, as they do to sum gradients; so what is measured is the loop around it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import _machine
import keras
import numpy as np

import stratagem

_ROWS, _FEATURES = 32, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        pass
    x = np.ones((_ROWS * args.steps, _FEATURES), "float32")
    fed = strategy.experimental_distribute_dataset(stratagem.ArrayDataset(x, _ROWS))
    (kept,) = [batch for _, batch in zip(range(1), fed, strict=False)]
    engine = strategy.extended.engine

    def meet() -> None:
        engine.barrier("a step")

    seconds = functools.partial(
        _seconds, meet=meet if len(engine.local_replica_ids) < engine.num_replicas else _nothing
    )
    memory, slow = [], []
    for _ in range(args.rounds):
        memory.append(seconds(iter(fed), 1e-3) / seconds((kept for _ in range(args.steps)), 1e-3))
        pipeline = strategy.experimental_distribute_dataset(lambda: _slowly(args.steps, 10e-3))
        alone = max(
            _seconds(_slowly(args.steps, 10e-3), 0.0, _nothing), seconds((kept for _ in range(args.steps)), 10e-3)
        )
        slow.append(seconds(iter(pipeline), 10e-3) / alone)
    if strategy.extended.engine.local_replica_ids[0] == 0:
        print(f"{keras.backend.backend()}, {strategy.num_replicas_in_sync} replicas\n{_machine.describe()}\n")
        print("| | median ratio (min - max) |\n| --- | --- |")
        for name, ratios in (("in memory, steps of 1 ms", memory), ("batches of 10 ms, steps of 10 ms", slow)):
            print(f"| {name} | {statistics.median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f}) |")


def _seconds(batches: Iterator[Any], step_seconds: float, meet: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in batches:
        time.sleep(step_seconds)
        meet()
    return time.perf_counter() - start


def _nothing() -> None:
    """One process meets nobody."""


def _slowly(count: int, seconds: float) -> Iterator[np.ndarray]:
    for _ in range(count):
        time.sleep(seconds)
        yield np.ones((_ROWS, _FEATURES), "float32")


if __name__ == "__main__":
    main()
