# SPDX-License-Identifier: Apache-2.0
"""Training on several replicas, on either engine, gives what one device gives, as recorded from TensorFlow (I1, I2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engines import ENGINES, num_processes, thorough
from tests.golden.case_runner import load_arrays, load_cases, numbered, run_case

CASES = load_cases()
# Keras on TensorFlow squares an embedding's gradient row by row before Adam sums it; no other backend does.
OTHER_BACKENDS_DIFFER = {"embed_lstm"}
# Normalised with the statistics of each replica's own rows: these match TensorFlow's replicas, not one device.
PER_REPLICA = {"cnn_batchnorm", "batchnorm_empty_replica", "mobilenetv2_block"}
EXACT = sorted(CASES.keys() - OTHER_BACKENDS_DIFFER - PER_REPLICA)

pytestmark = [pytest.mark.golden, pytest.mark.timeout(300)]


def _weight_tolerance(name: str) -> float:
    return 2e-3 if name == "mixed_bfloat16" else 2e-6


def _log_tolerance(name: str) -> float:
    return 2e-3 if name == "mixed_bfloat16" else 1e-5


def assert_weights_close(actual: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    """Every weight is as expected, relative to the largest number in it."""
    assert len(actual) == len(expected) > 0
    for mine, theirs in zip(actual, expected, strict=True):
        scale = max(float(np.abs(theirs).max(initial=0.0)), 1e-3)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * scale)


def assert_logs_close(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """The same names, and numbers within `tolerance`."""
    assert actual.keys() == expected.keys()
    for name, theirs in expected.items():
        if name == "accuracy" and tolerance > 1e-3:
            # In bfloat16 a row on the border between two classes can fall to either side: one row of the first batch.
            np.testing.assert_allclose(actual[name], np.asarray(theirs, float), rtol=0, atol=1 / 16 + 1e-6)
            continue
        np.testing.assert_allclose(
            actual[name], np.asarray(theirs, float), rtol=tolerance, atol=tolerance, err_msg=name
        )


def assert_case(name: str, result: dict[str, Any]) -> None:
    """One replica's results are those of the recorded single device."""
    arrays, single = load_arrays(name), CASES[name]["results"]["single"]
    tolerance = _weight_tolerance(name)
    if "first" in result:
        if numbered(arrays, "single_w1"):
            assert_weights_close(result["first"], numbered(arrays, "single_w1"), tolerance)
        assert_logs_close(result["history"], single["history"], _log_tolerance(name))
        assert len(result["step_logs"]) == len(single["step_logs"])
        for mine, theirs in zip(result["step_logs"], single["step_logs"], strict=True):
            assert_logs_close(mine, theirs, _log_tolerance(name))
    if numbered(arrays, "single_wf"):
        assert_weights_close(result["weights"], numbered(arrays, "single_wf"), tolerance)
    if "evaluate" in single:
        assert_logs_close(result["evaluate"], single["evaluate"], _log_tolerance(name))
    for key in ("train_on_batch", "test_on_batch"):
        if key in single:
            np.testing.assert_allclose(result[key], single[key], rtol=_log_tolerance(name), atol=_log_tolerance(name))
    predictions = numbered(arrays, "single_pred") or numbered(arrays, "single_pob")
    # Plain Keras on torch alone is 2.4e-3 away from TensorFlow's bfloat16 predictions.
    np.testing.assert_allclose(result["predict"], predictions[0], rtol=0, atol=max(1e-6, 1.5 * tolerance))


@pytest.mark.parametrize(
    ("engine", "replicas"),
    [thorough("torch", 1), ("torch", 2), ("torch", 4), thorough("jax", 1), ("jax", 2), thorough("jax", 4)],
)
@pytest.mark.parametrize("name", EXACT)
def test_replicas_give_the_recorded_results_of_one_device(
    name: str, engine: str, replicas: int, replica_pool: Any
) -> None:
    results = replica_pool(replicas, backend=engine).run(run_case, name, replicas, timeout_seconds=200)
    assert len(results) == num_processes(engine, replicas)
    for result in results:
        assert_case(name, result)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "replicas"),
    [(name, r) for name in sorted(PER_REPLICA) for r in (2, 4) if f"r{r}" in CASES[name]["results"]],
)
def test_unsynchronised_batch_normalization_keeps_the_mean_of_what_tensorflows_replicas_keep(
    name: str, replicas: int, engine: str, replica_pool: Any
) -> None:
    arrays, recorded = load_arrays(name), CASES[name]["results"][f"r{replicas}"]
    trainable = _trainable_places(name)
    results = replica_pool(replicas, backend=engine).run(run_case, name, replicas, timeout_seconds=200)
    theirs = [numbered(arrays, f"r{replicas}_wf")]
    theirs += [numbered(arrays, f"r{replicas}_wf_rep{k}") or theirs[0] for k in range(1, replicas)]
    finite = all(np.isfinite(weight).all() for weights in theirs for weight in weights)
    for result in results:
        assert all(np.isfinite(weight).all() for weight in result["weights"])
        assert_weights_close(
            [result["first"][i] for i in trainable],
            [numbered(arrays, f"r{replicas}_w1")[i] for i in trainable],
            _weight_tolerance(name),
        )
        if not finite:
            continue
        assert_weights_close(
            [result["weights"][i] for i in trainable], [theirs[0][i] for i in trainable], 10 * _weight_tolerance(name)
        )
        others = [i for i in range(len(theirs[0])) if i not in trainable]
        assert_weights_close(
            [result["weights"][i] for i in others],
            [np.mean([weights[i] for weights in theirs], axis=0) for i in others],
            1e-5,
        )
        assert_logs_close({"loss": result["history"]["loss"]}, {"loss": recorded["history"]["loss"]}, 1e-5)


def _trainable_places(name: str) -> list[int]:
    return [i for i, path in enumerate(CASES[name]["weight_paths"]) if "moving_" not in path]
