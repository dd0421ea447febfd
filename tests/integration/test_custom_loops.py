# SPDX-License-Identifier: Apache-2.0
"""Loops of users' own come to the results of one device, for any number of replicas (I1), on both engines (I2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stratagem.testing import ReplicaPool, assert_same_on_all_replicas
from tests.engines import ENGINES
from tests.integration.custom_loops import (
    MISTAKES,
    check,
    train,
    train_functionally,
    train_module,
    train_with_backward,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
Pools = Callable[..., ReplicaPool]
# Rows of an epoch in batches of 12; with JAX a batch must divide evenly among the replicas.
UNEVEN, EVEN = 41, 48


@pytest.mark.parametrize(("rows", "sized"), [(UNEVEN, False), (EVEN, True)])
def test_a_loop_over_a_data_set_trains_as_on_one_device(replica_pool: Pools, rows: int, sized: bool) -> None:
    (expected,) = replica_pool(1).run(train, 1, rows, sized)
    jobs = [("torch", 2), ("torch", 4)] if rows == UNEVEN else [("torch", 2), ("jax", 2), ("jax", 4)]
    for engine, replicas in jobs:
        found = replica_pool(replicas, backend=engine).run(train, replicas, rows, sized)
        assert_same_on_all_replicas(found)
        assert_close(found[0], expected, f"{engine} {replicas}")


def assert_close(found: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=2e-5, err_msg=name)
    for mine, theirs in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("engine", "loop", "rows"),
    [
        ("torch", train_with_backward, UNEVEN),
        ("torch", train_module, UNEVEN),
        ("jax", train_functionally, EVEN),
    ],
)
def test_the_loops_of_each_framework_train_as_on_one_device(
    replica_pool: Pools, engine: str, loop: Callable[[int, int], dict[str, Any]], rows: int
) -> None:
    (expected,) = replica_pool(1, backend=engine).run(loop, 1, rows)
    for replicas in (2, 4):
        found = replica_pool(replicas, backend=engine).run(loop, replicas, rows)
        assert_same_on_all_replicas(found)
        assert_close(found[0], expected, f"{engine} {replicas}")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_check_of_gradients_names_each_planted_mistake_and_changes_nothing(
    replica_pool: Pools, engine: str
) -> None:
    for replicas in (2, 4) if engine == "jax" else (2,):
        pool = replica_pool(replicas, backend=engine)
        for mistake, text in MISTAKES.items():
            for found in pool.run(check, mistake):
                assert found["ok"] is (mistake == "right"), (mistake, found)
                assert text.format(n=replicas) in found["text"], mistake
                assert found["ok"] or "\n  fix: " in found["text"]
                assert found["unchanged"], mistake
