# SPDX-License-Identifier: Apache-2.0
"""Programs give on any number of replicas, on either engine, what plain Keras gives on one device (I1, I6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stratagem.testing import assert_same_on_all_replicas
from tests.engines import ENGINES, num_processes, thorough
from tests.integration.program_runner import ONE_ENGINE, PROGRAMS, run_plain, run_under_strategy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TOLERANCE = {"mixed_float16_with_loss_scaling": 2e-3}
# On jax Keras alone loses the masks before its metrics; what is right is what it gives on torch.
PLAIN_ENGINE = {"masked_sequences": "torch"}


def assert_equal_results(actual: Any, expected: Any, tolerance: float, path: str = "") -> None:
    """The same structure, and numbers equal up to rounding, relative to the largest of an array."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), path
        for name in expected:
            assert_equal_results(actual[name], expected[name], tolerance, f"{path}/{name}")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), path
        for index, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
            assert_equal_results(mine, theirs, tolerance, f"{path}[{index}]")
    else:
        scale = max(1.0, float(np.abs(np.asarray(expected, float)).max(initial=0.0)))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale, err_msg=path)


_plain: dict[tuple[str, str], Any] = {}


def plain(name: str, engine: str, replica_pool: Any) -> Any:
    """The program's results on one device, computed once, in a process of its own."""
    if (name, engine) not in _plain:
        (_plain[name, engine],) = replica_pool(1, backend=engine).run(run_plain, name, timeout_seconds=200)
    return _plain[name, engine]


LONG_ROWS = {("torch", 1), ("torch", 3), ("torch", 4), ("jax", 4)}  # the golden cases have torch's four
LONG_PROGRAMS = {
    ("every_optimizer", "jax"),  # golden cases have the common optimizers
    ("every_reduction_and_custom_losses", "jax"),
}


def _row(name: str, engine: str, replicas: int) -> Any:
    is_long = (engine, replicas) in LONG_ROWS or (name, engine) in LONG_PROGRAMS
    return thorough(name, engine, replicas) if is_long else (name, engine, replicas)


# Compiling makes a program slow on jax: three replicas find there what two and four do, and the golden cases have one.
@pytest.mark.parametrize(
    ("name", "engine", "replicas"),
    [
        _row(name, engine, replicas)
        for name in sorted(PROGRAMS)
        for engine in ENGINES
        for replicas in ((1, 2, 3, 4) if engine == "torch" else (2, 4))
        if ONE_ENGINE.get(name, engine) == engine
    ],
)
def test_a_program_gives_the_results_of_one_device(name: str, engine: str, replicas: int, replica_pool: Any) -> None:
    expected = plain(name, PLAIN_ENGINE.get(name, engine), replica_pool)
    results = replica_pool(replicas, backend=engine).run(run_under_strategy, name, replicas, timeout_seconds=200)
    assert len(results) == num_processes(engine, replicas)
    assert_same_on_all_replicas(results)
    for result in results:
        assert_equal_results(result, expected, TOLERANCE.get(name, 1e-5))
