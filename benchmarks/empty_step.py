# SPDX-License-Identifier: Apache-2.0
"""What `strategy.run` costs by itself: microseconds of a call whose step does nothing, or next to nothing.

    KERAS_BACKEND=jax STRATAGEM_CPU_DEVICES=2 OMP_NUM_THREADS=1 python benchmarks/empty_step.py
    KERAS_BACKEND=torch STRATAGEM_CPU_DEVICES=2 OMP_NUM_THREADS=1 python benchmarks/empty_step.py

With JAX the engine's own dispatch is a jitted `shard_map` over the same devices, given the same value per replica; with
PyTorch it is a call of the function. The ways take turns, round by round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import _machine
import keras
import numpy as np

import stratagem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=300)
    args = parser.parse_args()
    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        pass
    value = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group)
    )
    ways = {
        "run of an empty step": lambda: strategy.run(_empty),
        "run of a step with a value": lambda: strategy.run(_plus_one, args=(value,)),
        "the engine's own dispatch": _own_dispatch(strategy, value),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for call in ways.values():
        call()
    for _ in range(args.rounds):
        for way, call in ways.items():
            found[way].append(_microseconds(call, args.calls))
    if stratagem_rank(strategy) == 0:
        print(f"{keras.backend.backend()}, {strategy.num_replicas_in_sync} replicas\n{_machine.describe()}\n")
        print("| | median microseconds a call (min - max) |\n| --- | --- |")
        for way, times in found.items():
            print(f"| {way} | {statistics.median(times):.1f} ({min(times):.1f} - {max(times):.1f}) |")


def stratagem_rank(strategy: stratagem.Strategy) -> int:
    """This process's first replica."""
    return strategy.extended.engine.local_replica_ids[0]


def _microseconds(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return 1e6 * (time.perf_counter() - start) / count


def _empty() -> None:
    return None


def _plus_one(value: object) -> object:
    return value + 1  # type: ignore[operator]


def _own_dispatch(strategy: stratagem.Strategy, value: stratagem.DistributedValues) -> Callable[[], object]:
    if keras.backend.backend() != "jax":
        (mine,) = value.values
        return lambda: _plus_one(mine)
    import jax
    from jax.sharding import PartitionSpec

    replicas = strategy.extended.engine.replicas
    whole = value.stack.whole
    spec = PartitionSpec("replica")
    step = jax.jit(jax.shard_map(_plus_one, mesh=replicas.mesh, in_specs=spec, out_specs=spec))
    return lambda: step(whole)


if __name__ == "__main__":
    main()
