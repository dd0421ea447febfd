# SPDX-License-Identifier: Apache-2.0
"""A training that is stopped anywhere and started again ends as one that never was (I4)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratagem.checkpoint import read_file
from tests.engines import ENGINES, thorough
from tests.integration.recovery_jobs import (
    EPOCHS,
    STEPS,
    STOPPED,
    checkpoint_by_hand,
    restore_by_hand,
    train,
    train_another_model,
    train_with_keras_backup,
)
from tests.processes import script, started, stratagem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]

_uninterrupted: dict[Any, Any] = {}


def uninterrupted(pool: Any, engine: str, replicas: int, data: str, draws: str) -> Any:
    """The results of a training that nobody stops, computed once."""
    key = (engine, replicas, data, draws)
    if key not in _uninterrupted:
        _uninterrupted[key] = pool.run(train, None, 0, data, draws)[0]
    return _uninterrupted[key]


def stop_and_go_on(pool: Any, folder: Path, stop_after: int, data: str, draws: str, save_freq: Any = 1) -> Any:
    backup = str(folder / "backup")
    assert set(pool.run(train, backup, stop_after, data, draws, save_freq)) == {STOPPED}
    results = pool.run(train, backup, 0, data, draws, save_freq)
    assert not (folder / "backup").exists(), "deleted when training is complete"
    return results


def assert_equal_to_the_bit(actual: Any, expected: Any) -> None:
    for part in ("weights", "optimizer"):
        for mine, theirs in zip(actual[part], expected[part], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert actual["history"] == expected["history"]
    assert actual["epochs"] == expected["epochs"] == list(range(EPOCHS))
    assert actual["iterations"] == expected["iterations"]
    # Each step that was done after the restart is one that would have been done, with the same logs.
    assert actual["seen"] == expected["seen"][-len(actual["seen"]) :]


def assert_close(actual: Any, expected: Any) -> None:
    for part in ("weights", "optimizer"):
        for mine, theirs in zip(actual[part], expected[part], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)
    assert actual["history"].keys() == expected["history"].keys()
    for name, values in expected["history"].items():
        np.testing.assert_allclose(actual["history"][name], values, rtol=1e-5, atol=1e-6)
    assert actual["iterations"] == expected["iterations"]


# After the first step, in the middle, before the last step and after it, at the next epoch's first, and later.
@pytest.mark.parametrize("stop_after", [1, thorough(STEPS - 1), STEPS, thorough(STEPS + 1), 2 * STEPS + 2])
def test_a_fit_on_torch_that_stopped_at_any_step_goes_on_to_the_same_bits(
    stop_after: int, tmp_path: Path, replica_pool: Any
) -> None:
    pool = replica_pool(1)
    (result,) = stop_and_go_on(pool, tmp_path, stop_after, "arrays", "unseeded")
    assert_equal_to_the_bit(result, uninterrupted(pool, "torch", 1, "arrays", "unseeded"))


@pytest.mark.parametrize("data", ["shuffled batches", thorough("passes over epochs"), thorough("generator"), "loader"])
def test_any_data_goes_on_where_it_was(data: str, tmp_path: Path, replica_pool: Any) -> None:
    pool = replica_pool(1)
    stop_after = 5 if data == "passes over epochs" else STEPS + 2
    (result,) = stop_and_go_on(pool, tmp_path, stop_after, data, "seeded")
    assert_equal_to_the_bit(result, uninterrupted(pool, "torch", 1, data, "seeded"))


@pytest.mark.parametrize(("stop_after", "save_freq"), [(STEPS + 3, 2), (STEPS + 3, "epoch")])
def test_what_was_done_after_the_last_save_is_done_again(
    stop_after: int, save_freq: Any, tmp_path: Path, replica_pool: Any
) -> None:
    pool = replica_pool(1)
    (result,) = stop_and_go_on(pool, tmp_path, stop_after, "arrays", "seeded", save_freq)
    assert_equal_to_the_bit(result, uninterrupted(pool, "torch", 1, "arrays", "seeded"))


def test_two_devices_of_jax_go_on_to_the_same_bits(tmp_path: Path, replica_pool: Any) -> None:
    pool = replica_pool(2, backend="jax")
    (result,) = stop_and_go_on(pool, tmp_path, STEPS + 2, "arrays", "seeded")
    assert_equal_to_the_bit(result, uninterrupted(pool, "jax", 2, "arrays", "seeded"))


@pytest.mark.parametrize("data", ["arrays", "generator"])
def test_two_replicas_of_torch_go_on_to_the_same_bits(data: str, tmp_path: Path, replica_pool: Any) -> None:
    pool = replica_pool(2)
    for result in stop_and_go_on(pool, tmp_path, STEPS + 2, data, "seeded"):
        assert_equal_to_the_bit(result, uninterrupted(pool, "torch", 2, data, "seeded"))


@pytest.mark.parametrize(("engine", "replicas"), [("torch", 1), ("jax", 2)])
def test_a_backup_of_two_replicas_goes_on_elsewhere(
    engine: str, replicas: int, tmp_path: Path, replica_pool: Any
) -> None:
    backup = str(tmp_path / "backup")
    pool = replica_pool(2)
    assert set(pool.run(train, backup, STEPS + 2, "in order", "none")) == {STOPPED}
    for result in replica_pool(replicas, backend=engine).run(train, backup, 0, "in order", "none"):
        assert_close(result, uninterrupted(pool, "torch", 2, "in order", "none"))


def test_the_backup_of_another_model_is_refused_by_the_first_variable(tmp_path: Path, replica_pool: Any) -> None:
    backup = str(tmp_path / "backup")
    pool = replica_pool(2)
    assert set(pool.run(train, backup, 2)) == {STOPPED}
    for said in pool.run(train_another_model, backup):
        assert "of 'model', variable 0 is 'sequential" in said
        assert "kernel' of shape (4, 9) here and 'sequential/dense/kernel' of shape (4, 8) in the file" in said


@pytest.mark.parametrize(("engine", "replicas"), [("torch", 2), ("jax", 2)])
def test_keras_s_own_backup_works_on_several_replicas(
    engine: str, replicas: int, tmp_path: Path, replica_pool: Any
) -> None:
    pool = replica_pool(replicas, backend=engine)
    folder = str(tmp_path / "backup")
    assert set(pool.run(train_with_keras_backup, folder, STEPS + 2)) == {STOPPED}
    for epochs, iterations, folder_is_left in pool.run(train_with_keras_backup, folder, 0):
        assert (epochs, iterations, folder_is_left) == ([1, 2], EPOCHS * STEPS, False)


def test_a_checkpoint_of_one_job_is_restored_by_another(tmp_path: Path, replica_pool: Any) -> None:
    for saved in replica_pool(2).run(checkpoint_by_hand, str(tmp_path), 0.25):
        assert saved["complete"]
        assert saved["done"] == {"steps": 7}
        assert all(np.all(weight == 0.25) for weight in saved["weights"])
    assert os.listdir(tmp_path) == ["by_hand.npz"]
    for engine in ENGINES:
        (weights, *_) = replica_pool(2, backend=engine).run(restore_by_hand, str(tmp_path))
        assert all(np.all(weight == 0.25) for weight in weights)


SCRIPT = """
    import sys
    from stratagem._core import env
    from tests.integration import recovery_jobs

    how, when, victim = sys.argv[1], int(sys.argv[2]), 1
    # Slow enough for the processes to agree on a step before the last one.
    stop_after, nap_seconds = when if env.job().rank == victim else 0, 0.1 if how == "sigterm_self" else 0.0
    recovery_jobs.train("backup", stop_after, end=getattr(recovery_jobs, how), nap_seconds=nap_seconds)
"""


def run_script(folder: Path, engine: str, how: str, when: int) -> int:
    """The exit code of a job of two processes, to the second of which `how` happens after `when` steps."""
    command = stratagem("run", "--backend", engine, "--cpu-devices", "2", "--processes", "2", script(folder, SCRIPT))
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    variables = {"PYTHONPATH": path, "KERAS_BACKEND": engine}
    with started([*command, how, str(when)], folder, variables) as program:
        code, _, _ = program.finish(60.0)
        assert not program.survivors()
    return code


def saved_steps(folder: Path) -> int:
    """How many steps were done when the newest backup was written."""
    state = read_file(sorted((folder / "backup").iterdir())[-1]).state
    assert state["epoch"] * STEPS + state["step"] == state["steps"]
    return state["steps"]


@pytest.mark.parametrize("engine", ["torch", thorough("jax")])
def test_report_38_after_sigterm_new_processes_have_the_moments_epoch_and_step_of_a_run_that_went_on(
    engine: str, tmp_path: Path, replica_pool: Any
) -> None:
    assert run_script(tmp_path, engine, "sigterm_self", 3) == 128 + signal.SIGTERM
    saved = saved_steps(tmp_path)
    assert saved >= 3
    pool = replica_pool(2, backend=engine)
    expected = uninterrupted(pool, engine, 2, "arrays", "seeded")
    for result in pool.run(train, str(tmp_path / "backup")):
        assert len(result["seen"]) == EPOCHS * STEPS - saved
        assert_close(result, expected)


def test_report_38_after_sigkill_new_processes_come_to_the_same_bits_moments_and_history(
    tmp_path: Path, replica_pool: Any
) -> None:
    assert run_script(tmp_path, "torch", "kill_self", STEPS + 2) == 128 + signal.SIGKILL
    assert saved_steps(tmp_path) in (STEPS + 1, STEPS + 2), "no more than one save_freq is lost"
    pool = replica_pool(2)
    expected = uninterrupted(pool, "torch", 2, "arrays", "seeded")
    for result in pool.run(train, str(tmp_path / "backup")):
        assert_equal_to_the_bit(result, expected)
