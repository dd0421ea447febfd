# SPDX-License-Identifier: Apache-2.0
"""A program: all workers sum tensors with the collectives that training uses, and take the time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from stratagem._core.cluster import Cluster
from stratagem._core.enums import Reduction
from stratagem.doctor._devices import print_answer, read_request
from stratagem.engines import select

__all__ = ["LARGE_BYTES", "main"]

LARGE_BYTES = 10_000_000
_SMALL_REPEATS = 10
_LARGE_REPEATS = 3
_FLOAT_BYTES = 4


def main() -> None:
    """Answer {"tasks", "rank"} with the seconds of one sum of each size.

    The first task's address in "tasks" is where they meet.
    """
    request = read_request()
    cluster = Cluster(tasks=tuple((name, address) for name, address in request["tasks"]), rank=request["rank"])
    engine = select.engine()
    engine.join(cluster)
    engine.connect(engine.local_devices())
    num_local = len(engine.local_replica_ids)

    def total(num_floats: int) -> float:
        ones = engine.to_tensor([1.0] * num_floats)
        # Read, because a framework may answer before it has computed.
        return float(engine.all_reduce(Reduction.SUM, [[ones]] * num_local)[0][0][-1])

    print_answer(_timed(total, engine.num_replicas, f"the {engine.name} engine"))


def _timed(total: Callable[[int], float], num_replicas: int, by: str) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    for size, num_floats, repeats in (
        ("small", 1, _SMALL_REPEATS),
        ("large", LARGE_BYTES // _FLOAT_BYTES, _LARGE_REPEATS),
    ):
        took: list[float] = []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            found = total(num_floats)
            took.append(time.perf_counter() - started)
            if found != num_replicas:
                raise ArithmeticError(f"the sum of a one from each of {num_replicas} replicas came out as {found:g}")
        # The first opens connections, or compiles.
        seconds[size] = statistics.median(took[1:])
    return {"small_seconds": seconds["small"], "large_seconds": seconds["large"], "by": by}


if __name__ == "__main__":
    main()
