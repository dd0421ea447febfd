# SPDX-License-Identifier: Apache-2.0
"""What holds on every replica around `fit`: rows, files, logs, state, and errors for what can't work."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from stratagem.errors import ReplicaFailedError
from stratagem.testing import assert_same_on_all_replicas
from tests.engines import ENGINES, thorough
from tests.integration import behaviours
from tests.integration.test_keras_fit import assert_equal_results

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


on_both_engines = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("engine", "replicas"),
    [
        thorough("torch", 1),
        ("torch", 2),
        thorough("torch", 3),
        ("torch", 4),
        thorough("jax", 1),
        ("jax", 2),
        thorough("jax", 3),
        thorough("jax", 4),
    ],
)
def test_report_20_any_rows_batch_loss_and_weights_give_finite_results_equal_to_torch_on_one_device(
    engine: str, replicas: int, replica_pool: Any
) -> None:
    pool = replica_pool(replicas, backend=engine)

    @hypothesis.settings(max_examples=12, deadline=None, database=None, derandomize=True)
    @hypothesis.given(
        rows=st.integers(1, 40),
        batch=st.integers(1, 9),
        kind=st.sampled_from(["mean", "sum", "mean_with_sample_weight", "custom_mean"]),
        weights=st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=7),
    )
    # Fewer rows than replicas, in each batch and in the last one.
    @hypothesis.example(rows=3, batch=1, kind="custom_mean", weights=None)
    def check(rows: int, batch: int, kind: str, weights: list[float] | None) -> None:
        (expected,) = replica_pool(1).run(behaviours.plain_case, rows, batch, kind, weights)
        for result in pool.run(behaviours.property_case, rows, batch, kind, weights, replicas):
            for numbers in (*result["weights"], *result["history"].values(), result["predict"]):
                assert np.isfinite(numbers).all()
            assert_equal_results(result, expected, 1e-5)

    check()


@on_both_engines
@pytest.mark.parametrize("seed", [None, 5])
def test_dropout_differs_between_replicas_and_repeats_between_runs(
    engine: str, seed: int | None, replica_pool: Any
) -> None:
    first, again = assert_same_on_all_replicas(replica_pool(2, backend=engine).run(behaviours.dropout_masks, seed))
    masks = first[0]
    assert len(masks) == 2
    # Rows 0 to 3 are replica 0's, rows 4 to 7 replica 1's.
    kept = [mask[rows] for mask in masks for rows in (slice(0, 4), slice(4, 8))]
    assert all(0.2 < part.mean() < 0.8 for part in kept)
    assert len({part.tobytes() for part in kept}) == 4
    assert_equal_results(again, first, 0)


@on_both_engines
def test_report_50_draws_with_a_seed_follow_the_rows_of_the_global_batch_for_any_number_of_replicas(
    engine: str, replica_pool: Any
) -> None:
    rows = 24 if engine == "jax" else 22  # an uneven batch is computed as on one device there
    (expected,) = replica_pool(1, backend=engine).run(behaviours.plain_seeded_draws, rows)
    for replicas in (2, 3) if engine == "torch" else (2,):
        found = assert_same_on_all_replicas(replica_pool(replicas, backend=engine).run(behaviours.seeded_draws, rows))
        assert_equal_results(found, expected, 1e-5)


@on_both_engines
def test_in_a_loop_too_draws_with_a_seed_follow_the_rows_and_others_differ_between_replicas(
    engine: str, replica_pool: Any
) -> None:
    rows = 24 if engine == "jax" else 22  # with JAX each batch of a loop divides evenly
    one = replica_pool(1, backend=engine).run(behaviours.draws_of_a_loop, rows)[0]
    two = assert_same_on_all_replicas(replica_pool(2, backend=engine).run(behaviours.draws_of_a_loop, rows))
    assert 0.4 < one["seeded"].mean() < 0.6
    np.testing.assert_array_equal(one["seeded"], two["seeded"])
    first, second = two["unseeded"][:4], two["unseeded"][4:]
    assert (first != second).mean() > 0.3


@on_both_engines
@pytest.mark.parametrize("kind", ["tf_data", "loader", "arrays"])
def test_each_row_is_used_exactly_once_an_epoch_also_when_nobody_seeded_the_shuffle(
    engine: str, kind: str, replica_pool: Any
) -> None:
    epochs = assert_same_on_all_replicas(replica_pool(2, backend=engine).run(behaviours.rows_seen, kind))
    assert len(epochs) == 3
    assert epochs[0] != epochs[1]
    for steps in epochs:
        assert [sum(step) for step in steps] == [16, 16, 16, 2]
        assert np.sum(steps, axis=0).tolist() == [1] * 50


def test_arrays_that_differ_between_processes_are_those_of_the_chief(replica_pool: Any) -> None:
    assert_same_on_all_replicas(replica_pool(3).run(behaviours.arrays_that_nobody_seeded))


def test_data_that_ends_at_different_steps_ends_everywhere_where_the_chiefs_ends(replica_pool: Any) -> None:
    *_, steps = assert_same_on_all_replicas(replica_pool(3).run(behaviours.generators_of_different_lengths))
    assert steps == 3


@on_both_engines
def test_files_are_written_once_and_complete_when_fit_returns(engine: str, replica_pool: Any, tmp_path: Path) -> None:
    for result in replica_pool(3, backend=engine).run(behaviours.callbacks_that_write, str(tmp_path)):
        assert_equal_results(result["last"], result["weights"], 0)
        assert_equal_results(result["final"], result["weights"], 0)
    with (tmp_path / "log.csv").open() as log:
        assert [row["epoch"] for row in csv.DictReader(log)] == ["0", "1", "2"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "best.keras",
        "epoch-1.weights.h5",
        "epoch-2.weights.h5",
        "epoch-3.weights.h5",
        "final.keras",
        "log.csv",
    ]


@on_both_engines
def test_an_interrupted_run_resumes_on_every_replica_and_ends_like_one_that_was_not(
    engine: str, replica_pool: Any, tmp_path: Path
) -> None:
    for result in replica_pool(2, backend=engine).run(behaviours.interrupted_and_resumed, str(tmp_path)):
        assert result["stopped"]
        assert result["epochs"] == [2, 3]
        assert_equal_results(result["resumed"], result["whole"], 0)


@on_both_engines
def test_a_callback_sees_the_same_logs_to_the_bit_on_every_replica(engine: str, replica_pool: Any) -> None:
    seen = assert_same_on_all_replicas(replica_pool(3, backend=engine).run(behaviours.logs_at_every_step))
    assert len(seen) == 2 * (3 + 2 + 1)


@on_both_engines
def test_report_25_moving_statistics_follow_the_replicas_mean_change_weighted_by_rows_with_an_empty_replica_too(
    engine: str, replica_pool: Any
) -> None:
    result = assert_same_on_all_replicas(replica_pool(3, backend=engine).run(behaviours.moving_statistics))
    mean, variance = np.zeros(4), np.ones(4)
    for shares in ([(0, 4), (4, 8), (8, 10)], [(10, 13), (13, 16), (16, 17)], [(17, 18), (18, 19)]):
        parts = [result["x"][start:stop] for start, stop in shares]
        rows = [len(part) for part in parts]
        mean = 0.5 * mean + 0.5 * np.average([part.mean(axis=0) for part in parts], axis=0, weights=rows)
        variance = 0.5 * variance + 0.5 * np.average([part.var(axis=0) for part in parts], axis=0, weights=rows)
    np.testing.assert_allclose(result["mean"], mean, atol=1e-6)
    np.testing.assert_allclose(result["variance"], variance, atol=1e-6)
    assert all(np.isfinite(weight).all() for weight in result["weights"])
    gamma, beta, *_ = result["weights"]
    assert (gamma != 1).all(), "trained"
    assert (beta != 0).all(), "trained"


def test_a_step_sends_nothing_but_its_buckets_of_gradients(replica_pool: Any) -> None:
    few = assert_same_on_all_replicas(replica_pool(2).run(behaviours.messages_besides_the_buckets, 3))
    many = assert_same_on_all_replicas(replica_pool(2).run(behaviours.messages_besides_the_buckets, 30))
    assert few == many > 0


def test_training_starts_from_the_chiefs_weights(replica_pool: Any) -> None:
    result = assert_same_on_all_replicas(replica_pool(2).run(behaviours.with_different_initial_weights))
    assert abs(result["weights"][0]).max() < 0.5


@on_both_engines
@pytest.mark.parametrize(
    ("situation", "text"),
    [
        (behaviours.trained_in_another_scope, r"MixedStrategyError: model 'sequential.*' was made in the scope of"),
        (behaviours.made_outside_every_scope, "ContextError: the variables of model 'outsider' were made outside"),
        (behaviours.parts_of_a_batch_that_disagree, "BatchMismatchError: one batch has 8 rows in x but 7 rows in y"),
    ],
)
def test_what_can_not_work_is_refused_in_one_sentence(
    situation: Any, text: str, engine: str, replica_pool: Any
) -> None:
    with pytest.raises(ReplicaFailedError, match=text):
        replica_pool(2, backend=engine).run(situation, timeout_seconds=60)


def test_data_of_another_kind_in_another_process_is_refused(replica_pool: Any) -> None:
    with pytest.raises(ReplicaFailedError, match="JobMismatchError: replica 1 trains on Generator"):
        replica_pool(2).run(behaviours.different_kinds_of_data, timeout_seconds=60)


def test_a_model_made_outside_the_scope_is_warned_of_once_by_the_chief(replica_pool: Any) -> None:
    chief, other = replica_pool(2).run(behaviours.trained_without_a_scope)
    assert len(chief) == 1
    assert "fit() of model 'outsider': this job has 2 replicas, but the model was made outside" in chief[0]
    assert other == []


def test_a_generator_that_raises_ends_every_replica(replica_pool: Any) -> None:
    chief, other = replica_pool(2).run(behaviours.a_generator_that_raises, timeout_seconds=60)
    assert chief.startswith("OSError: the disk is on fire")
    assert other.startswith("ReplicaFailedError: replica 0 could not read the next batch: OSError: the disk is on fire")
