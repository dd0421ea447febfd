# SPDX-License-Identifier: Apache-2.0
"""`Checkpoint` restores the objects it was given, and `CheckpointManager` keeps its last files."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import stratagem as distribute
from stratagem.checkpoint import CheckpointError, CheckpointMismatchError
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError

pytestmark = [
    pytest.mark.timeout(60),
    # Keras's own variables, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]


def model_of(units: int = 3) -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units), keras.layers.Dropout(0.5, seed=1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def set_all(variables: Any, number: float) -> None:
    for variable in variables:
        variable.assign(keras.ops.full(variable.shape, number, variable.dtype))


def all_are(variables: Any, number: float) -> bool:
    return all(np.all(keras.ops.convert_to_numpy(variable.value) == number) for variable in variables)


def test_every_kind_of_object_is_restored(tmp_path: Path) -> None:
    model, metric, seed = model_of(), keras.metrics.Mean(), keras.random.SeedGenerator(4)
    variable, numbers = keras.Variable([1.0, 2.0]), {"epoch": 3, "best": 0.25, "names": ["a"]}
    state = [*model.variables, *model.optimizer.variables, *metric.variables, seed.state, variable]
    checkpoint = distribute.Checkpoint(model=model, metric=metric, seed=seed, variable=variable, numbers=numbers)
    set_all(state, 5)
    path = checkpoint.save(tmp_path / "one.npz")
    set_all(state, 6)
    numbers.clear()
    checkpoint.restore(path)
    assert all_are(state, 5)
    assert numbers == {"epoch": 3, "best": 0.25, "names": ["a"]}


def test_a_program_that_starts_again_needs_no_built_optimizer(tmp_path: Path) -> None:
    trained = model_of()
    set_all(trained.optimizer.variables, 2)
    path = distribute.Checkpoint(model=trained).save(tmp_path / "one.npz")
    fresh = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dropout(0.5, seed=1)])
    fresh.compile("adam", "mse")
    distribute.Checkpoint(model=fresh).restore(path)
    assert all_are(fresh.optimizer.variables, 2)


def test_another_model_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = distribute.Checkpoint(model=model_of(3)).save(tmp_path / "one.npz")
    other = model_of(4)
    set_all(other.weights, 7)
    with pytest.raises(CheckpointMismatchError, match=r"kernel' of shape \(2, 4\) here and .* of shape \(2, 3\)"):
        distribute.Checkpoint(model=other).restore(path)
    assert all_are(other.weights, 7)


def test_what_has_no_state_or_is_not_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="steps=3"):
        distribute.Checkpoint(steps=3)
    with pytest.raises(ContextError, match="'layer' of a Checkpoint has no variables yet"):
        distribute.Checkpoint(layer=keras.layers.Dense(1)).save(tmp_path / "one.npz")
    with pytest.raises(CheckpointError, match=r"one\.npz can't be used"):
        distribute.Checkpoint(done={}).restore(tmp_path / "one.npz")


def test_a_manager_keeps_the_last_files_and_restores_the_newest_good_one(tmp_path: Path) -> None:
    done = {"step": 0}
    manager = distribute.CheckpointManager(distribute.Checkpoint(done=done), tmp_path, max_to_keep=2)
    assert manager.restore_or_initialize() is None
    paths = []
    for done["step"] in (10, 20, 30):
        paths.append(manager.save())
    assert manager.checkpoints == paths[1:] == [str(path) for path in sorted(tmp_path.iterdir())]
    assert manager.latest_checkpoint == paths[2]
    os.truncate(paths[2], 100)
    assert manager.restore_or_initialize() == paths[1]
    assert done == {"step": 20}


@pytest.mark.parametrize("options", [{"max_to_keep": 0}, {"max_to_keep": 1, "checkpoint_name": "a/b"}])
def test_a_manager_s_arguments_are_checked(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="CheckpointManager"):
        distribute.CheckpointManager(distribute.Checkpoint(), tmp_path, **options)


def test_a_lone_callback_runs_on_the_thread_of_the_training(tmp_path: Path) -> None:
    threads = set()

    class Backup(distribute.BackupAndRestore):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            threads.add(threading.current_thread())
            super().on_train_batch_end(batch, logs)

    backup = Backup(tmp_path / "backup")
    model_of().fit(np.ones((4, 2)), np.ones((4, 3)), batch_size=2, verbose=0, callbacks=backup)
    assert threads == {threading.current_thread()}


def test_sigterm_in_a_last_epoch_takes_effect_when_training_is_complete(tmp_path: Path) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        send = keras.callbacks.LambdaCallback(on_train_end=lambda logs: signal.raise_signal(signal.SIGTERM))
        backup = distribute.BackupAndRestore(tmp_path / "backup")
        history = model_of().fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0, callbacks=[backup, send])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (came, history.epoch) == ([signal.SIGTERM], [0])


@pytest.mark.parametrize("options", [{"save_freq": 0}, {"save_freq": "step"}, {"save_freq": True}, {"keep": 0}])
def test_the_arguments_of_a_backup_are_checked(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="BackupAndRestore"):
        distribute.BackupAndRestore(tmp_path, **options)
    with pytest.raises(ArgumentTypeError, match="is given no folder"):
        distribute.BackupAndRestore("")
