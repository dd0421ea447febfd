# SPDX-License-Identifier: Apache-2.0
"""What users reported of other libraries does not happen here: each test names its report.

Others of the reports are tested where their subject is: `grep -r report_` finds them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stratagem.testing import ReplicaPool, assert_same_on_all_replicas
from tests.engines import ENGINES, thorough
from tests.integration import reports
from tests.integration.worker_reports import EPOCHS
from tests.two_workers import Answers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
Pools = Callable[..., ReplicaPool]

# Jobs that other tests have too; with jax one of four replicas, as it compiles once for any number.
JOBS = [("torch", 2), thorough("torch", 4), ("jax", 4)]
# Several processes, of which only one may write.
PROCESSES = [("torch", 3, None), ("jax", 4, 2)]
on_both_engines = pytest.mark.parametrize("engine", ENGINES)


@on_both_engines
def test_report_17_a_worker_that_is_alone_reads_files_without_a_word(
    engine: str, replica_pool: Pools, tmp_path: Path
) -> None:
    pool = replica_pool(2, backend=engine)
    assert set(pool.run(reports.noise_while_nothing_is_divided, str(tmp_path))) == {""}


@on_both_engines
def test_report_17_of_two_workers_the_chief_says_once_how_a_data_set_is_divided_and_why(
    engine: str, two_workers: Callable[[str], Answers]
) -> None:
    answers = two_workers(engine)
    chief, other = (found["report_17"] for found in answers.found)
    (line,) = chief
    assert line.startswith("tf.data.Dataset over 2 workers: DATA, 1 file is fewer than workers: each worker gets its ")
    assert other == []
    assert "shard" not in answers.err.lower()


@on_both_engines
def test_report_22_three_epochs_end_together_where_workers_have_other_numbers_of_rows(
    engine: str, two_workers: Callable[[str], Answers]
) -> None:
    found = assert_same_on_all_replicas([found["report_22"] for found in two_workers(engine).found])
    fit = found["tf.data"]
    assert fit["steps"] == EPOCHS * 6
    assert fit["rows"] == pytest.approx([11.0] * EPOCHS), "of the numbers 0 to 22"
    if engine == "torch":
        assert found["PyDataset"] == EPOCHS * 3, "as many as the chief has"
    else:
        assert found["PyDataset"].startswith("process 1 has 5 batches an epoch, and process 0 3")
    # Of 0 to 2 and of 0 to 6 in batches of two; the first worker has none left after the second step.
    assert found["function"] == [[0 + 1 + 0 + 1, 2 + 2 + 3, 4 + 5, 6]] * EPOCHS


@pytest.mark.parametrize(("engine", "replicas"), JOBS)
def test_report_23_all_seven_calls_take_rows_that_do_not_divide_evenly(
    engine: str, replicas: int, replica_pool: Pools
) -> None:
    pool = replica_pool(replicas, backend=engine)
    found = assert_same_on_all_replicas(pool.run(reports.seven_calls_with_23_rows))
    assert found["steps"] == 3 + 1 + 1
    x, y = found["x"].astype(float), found["y"]
    by_hand = np.zeros((3, 1))
    for rows in (slice(0, 8), slice(8, 16), slice(16, 23), slice(0, 23), slice(0, 23)):
        error = x[rows] @ by_hand - y[rows]
        by_hand = by_hand - 0.05 * 2 * x[rows].T @ error / len(error)
    np.testing.assert_allclose(found["weights"][0], by_hand, atol=1e-6)
    predicted = x @ found["weights"][0].astype(float)
    error = predicted - y
    expected = [np.mean(error**2), np.mean(abs(error))]
    for name in ("evaluate", "test_on_batch"):
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, err_msg=name)
    for name in ("predict", "predict_on_batch"):
        assert found[name].shape == (23, 1)
        np.testing.assert_allclose(found[name], predicted, atol=1e-6, err_msg=name)
    assert found["history"].keys() == {"loss", "mae"}
    assert found["validated"].keys() == {"loss", "mae", "val_loss", "val_mae"}


@pytest.mark.parametrize(("engine", "replicas"), [("torch", 4), ("jax", 4)])
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_report_26_four_replicas_of_8_rows_keep_the_statistics_of_32_rows(
    dtype: str, engine: str, replicas: int, replica_pool: Pools
) -> None:
    pool = replica_pool(replicas, backend=engine)
    found = assert_same_on_all_replicas(pool.run(reports.synchronized_statistics, dtype, 32))
    x = found["x"].astype(float)
    np.testing.assert_allclose(found["mean"], x.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["variance"], x.var(axis=0), rtol=1e-5)
    (alone,) = replica_pool(1, backend=engine).run(reports.synchronized_statistics, dtype, 32)
    for mine, theirs in zip(found["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 if dtype == "float32" else 1e-3)


@pytest.mark.parametrize(("engine", "replicas"), JOBS)
def test_report_28_the_loss_of_an_own_train_step_is_that_of_all_rows(
    engine: str, replicas: int, replica_pool: Pools
) -> None:
    # Over two replicas 2.5 and 6, over four 1.5, 3.5, 5.5 and 7: the mean of replicas is another number.
    pool = replica_pool(replicas, backend=engine)
    history = assert_same_on_all_replicas(pool.run(reports.losses_of_an_own_train_step, 7))
    assert history == {"loss": [4.0, 4.0], "tracked": [4.0, 4.0]}


@pytest.mark.parametrize(("engine", "steps"), [("torch", 500), thorough("jax", 500)])
def test_report_29_metrics_read_at_every_one_of_many_steps_are_right_and_stay_so(
    engine: str, steps: int, replica_pool: Pools
) -> None:
    pool = replica_pool(2, backend=engine)
    found = assert_same_on_all_replicas(pool.run(reports.metrics_read_at_every_step, steps))
    for name, logged in found["seen"].items():
        assert len(logged) == steps
        assert np.isfinite(logged).all(), name
        for so_far, expected in found["expected"].items():
            assert logged[so_far - 1] == pytest.approx(expected[name], rel=1e-5), (name, so_far)
        assert found["history"][name] == [logged[-1]]
    assert len(found["again"]) == 2 * steps // 10
    for name, logged, read in found["again"]:
        assert read == pytest.approx(logged, rel=1e-6), name


@on_both_engines
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_report_31_three_uneven_micro_batches_are_one_large_batch(
    reduction: str, engine: str, replica_pool: Pools
) -> None:
    rows = [5, 2, 1, 3, 7, 4]
    weights, x, y = assert_same_on_all_replicas(
        replica_pool(2, backend=engine).run(reports.accumulated, rows, 3, reduction)
    )
    by_hand = np.zeros((3, 1))
    ends = np.cumsum(rows)
    for first in (0, 3):
        large = slice(ends[first] - rows[first], ends[first + 2])
        # Keras takes the mean over micro-batches: of their sums a third of the large batch's, of their means the mean.
        divisor = np.repeat(rows[first : first + 3], rows[first : first + 3])[:, None] if reduction != "sum" else 1
        gradient = 2 * x[large].T @ ((x[large] @ by_hand - y[large]) / divisor)
        by_hand = by_hand - 0.1 * gradient / 3
    np.testing.assert_allclose(weights, by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("engine", "replicas"), [*(("torch", r) for r in (1, 2, 4)), thorough("jax", 2), ("jax", 4)])
def test_report_32_each_prediction_belongs_to_its_row_in_every_part_of_a_structure(
    engine: str, replicas: int, replica_pool: Pools
) -> None:
    pool = replica_pool(replicas, backend=engine)
    predictions = assert_same_on_all_replicas(pool.run(reports.predictions_of_row_numbers, [0, 1, 17, 23], 5))
    assert predictions.pop(0).startswith("predict() was given no rows")
    for count, predicted in predictions.items():
        ids = np.arange(count, dtype="float32")[:, None]
        same, (more, (twice,)) = predicted["same"], predicted["more"]
        for found, expected in ((same, ids), (more, ids + 1), (twice, ids * 2)):
            assert found.shape == (count, 1)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("engine", "replicas", "processes"), PROCESSES)
def test_report_34_of_all_that_save_to_one_path_one_writes_and_all_can_read(
    engine: str, replicas: int, processes: int | None, replica_pool: Pools, tmp_path: Path
) -> None:
    pool = replica_pool(replicas, backend=engine, processes=processes)
    chief, *others = pool.run(reports.saved_by_all_to_one_path, str(tmp_path))
    assert set(chief.pop("opened")) == {"model.keras"}
    assert others
    for other in others:
        assert other.pop("opened") == []
    assert_same_on_all_replicas([chief, *others])
    assert_same_on_all_replicas([chief["weights"], chief["loaded"]])
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize(("engine", "replicas", "processes"), PROCESSES)
def test_report_35_the_chief_may_save_alone(
    engine: str, replicas: int, processes: int | None, replica_pool: Pools, tmp_path: Path
) -> None:
    pool = replica_pool(replicas, backend=engine, processes=processes)
    assert set(pool.run(reports.saved_by_the_chief_alone, str(tmp_path), timeout_seconds=30)) == {True}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chief.keras", "chief.weights.h5"]


@pytest.mark.parametrize(
    ("first", "then", "kind"),
    [
        (("torch", 2), ("torch", 2), "shuffled arrays"),
        (("torch", 2), ("torch", 1), "generator"),
        # To the other engine an epoch that is shuffled goes on in another order, as docs/recovery.md says.
        (("torch", 2), ("jax", 4), "generator"),
        (("jax", 4), ("jax", 2), "shuffled arrays"),
        thorough(("jax", 4), ("torch", 3), "generator"),
    ],
    ids=str,
)
def test_report_37_stopped_at_step_13_of_40_an_epoch_still_trains_on_each_row_once(
    first: tuple[str, int], then: tuple[str, int], kind: str, replica_pool: Pools, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    for (engine, replicas), stop_after in ((first, 13), (then, None)):
        pool = replica_pool(replicas, backend=engine)
        times = assert_same_on_all_replicas(pool.run(reports.times_trained_on, backup, stop_after, kind))
    assert times == [1] * reports.RESUMED_ROWS


@pytest.mark.parametrize(("engine", "replicas"), JOBS)
def test_report_47_an_overflow_on_one_replica_is_skipped_by_all_and_halves_the_scale_once(
    engine: str, replicas: int, replica_pool: Pools
) -> None:
    pool = replica_pool(replicas, backend=engine)
    seen = assert_same_on_all_replicas(pool.run(reports.scales_of_losses))
    scale, counter, iterations = 1024.0, 0, 0
    expected = []
    for step in range(reports.SCALED_STEPS):
        if step == reports.OVERFLOWS_AT:
            scale, counter = scale / 2, 0
        else:
            iterations += 1
            grows = counter == reports.GROWS_AFTER - 1
            scale, counter = (2 * scale, 0) if grows else (scale, counter + 1)
        expected.append((scale, counter, iterations))
    assert list(zip(seen["scale"], seen["counter"], seen["iterations"], strict=True)) == expected
    weights = np.asarray(seen["weights"])
    assert np.isfinite(weights).all()
    changed = [not np.array_equal(before, after) for before, after in itertools.pairwise(weights)]
    assert [step for step, change in enumerate(changed, start=1) if not change] == [reports.OVERFLOWS_AT]
