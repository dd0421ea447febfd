# SPDX-License-Identifier: Apache-2.0
"""On CUDA devices, programs give what plain Keras gives on one of them, and NCCL keeps the engine's promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from stratagem.testing import ReplicaPool, assert_same_on_all_replicas
from tests.integration.program_runner import run_plain, run_under_strategy
from tests.integration.test_keras_fit import assert_equal_results

NUM_GPUS = torch.cuda.device_count()
PROGRAMS = [
    "arrays_shuffled_with_validation_split",
    "data_loader_that_shuffles",
    "named_inputs_and_outputs",
    "masked_sequences",
    "every_reduction_and_custom_losses",
    "metrics_that_are_not_sums",
    "own_train_and_test_step",
    "synchronised_batch_normalization",
    "methods_on_one_batch",
]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(NUM_GPUS == 0, reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def gpu_pool() -> Iterator[Callable[[int], ReplicaPool]]:
    """`gpu_pool(n)`: a job of n processes with a GPU each."""
    pools: dict[int, ReplicaPool] = {}

    def pool(replicas: int) -> ReplicaPool:
        if replicas > NUM_GPUS:
            pytest.skip(f"{replicas} replicas need as many GPUs; there are {NUM_GPUS}")
        if replicas not in pools:
            pools[replicas] = ReplicaPool(replicas=replicas)
        return pools[replicas]

    yield pool
    for open_pool in pools.values():
        open_pool.close()


def where_things_are() -> dict[str, Any]:
    """The devices of a model, and what carries collectives."""
    import keras

    import stratagem
    from stratagem.engines import select

    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    engine: Any = select.engine()
    return {
        "devices": strategy.extended.devices,
        "weights": {str(weight.value.device) for weight in model.weights},
        "transport": type(engine.transport).__name__,
        "rank": engine.rank,
    }


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_each_replica_computes_on_its_own_gpu(replicas: int, gpu_pool: Any) -> None:
    for result in gpu_pool(replicas).run(where_things_are):
        assert result["devices"] == tuple(f"GPU:{index}" for index in range(replicas))
        assert result["weights"] == {f"cuda:{result['rank']}"}
        assert result["transport"] == ("LocalTransport" if replicas == 1 else "ProcessGroupTransport")


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_results_of_one_gpu(name: str, replicas: int, gpu_pool: Any) -> None:
    results = gpu_pool(replicas).run(run_under_strategy, name, timeout_seconds=200)
    (expected,) = gpu_pool(1).run(run_plain, name, timeout_seconds=200)
    assert_same_on_all_replicas(results)
    for result in results:
        assert_equal_results(result, expected, 1e-4)


def sums_of_a_divided_data_set() -> list[tuple[str, float]]:
    """Where each element lies, and what a step that is behind the copies makes of it."""
    import numpy as np

    import stratagem

    strategy = stratagem.MirroredStrategy()
    rows = np.arange(64 * 4096, dtype="float32").reshape(64, 4096) % 97
    found = []
    for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset(rows, 8)):
        (mine,) = strategy.experimental_local_results(batch)
        # The device is busy for a while, so the next copies are on their way while this is computed.
        busy = torch.ones((2048, 2048), device=mine.device)
        for _ in range(20):
            busy = busy @ busy / 2048
        found.append((str(mine.device), float(strategy.reduce("SUM", batch, axis=0).sum() + 0 * busy[0, 0])))
    return found


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_was_copied_ahead_from_pinned_memory_is_whole_when_a_step_reads_it(replicas: int, gpu_pool: Any) -> None:
    expected = [float((torch.arange(64 * 4096) % 97).reshape(8, -1)[step].sum()) for step in range(8)]
    for rank, found in enumerate(gpu_pool(replicas).run(sums_of_a_divided_data_set)):
        assert [device for device, _ in found] == [f"cuda:{rank}"] * 8
        assert [total for _, total in found] == pytest.approx(expected)
