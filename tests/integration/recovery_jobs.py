# SPDX-License-Identifier: Apache-2.0
"""What the tests of recovery run in other processes: a training that is stopped, and started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.engines import compiling_quickly

ROWS, BATCH, EPOCHS = 22, 4, 3
STEPS = 6  # an epoch, of which the last has 2 rows
STOPPED = "stopped"


class Stop(Exception):
    """Ends a training in its middle, as a kill does, but not its process."""


def stop() -> None:
    raise Stop


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sigterm_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 4)).astype("float32"), rng.normal(size=(ROWS, 2)).astype("float32")


def make_model(strategy: Any, draws: str) -> Any:
    """A model with all kinds of state; `draws` is which Dropout it has: "none", "seeded" or "unseeded"."""
    import keras

    dropout = {"none": [], "seeded": [{"seed": 4}], "unseeded": [{"seed": 4}, {}]}[draws]
    # Then nothing depends on the number of replicas, and no weight on rounding alone, as a bias before a normalization.
    exact = draws == "none"
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, use_bias=not exact),
                keras.layers.BatchNormalization(synchronized=exact),
                *(keras.layers.Dropout(0.3, **options) for options in dropout),
                keras.layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def source(kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for `fit` of one kind of data."""
    x, y = rows()

    def batches() -> Any:
        while True:
            for start in range(0, ROWS, BATCH):
                yield x[start : start + BATCH], y[start : start + BATCH]

    if kind == "generator":
        return (batches(),), {"steps_per_epoch": STEPS, "shuffle": False}
    if kind == "loader":
        import torch

        data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        order = torch.Generator().manual_seed(5)
        return (torch.utils.data.DataLoader(data, BATCH, shuffle=True, generator=order),), {"shuffle": False}
    options: dict[str, dict[str, Any]] = {
        "arrays": {},
        "in order": {"shuffle": False},
        "shuffled batches": {"shuffle": "batch"},
        "passes over epochs": {"steps_per_epoch": 2},
    }
    return (x, y), {"batch_size": BATCH, **options[kind]}


def train(
    folder: str | None,
    stop_after: int = 0,
    data: str = "arrays",
    draws: str = "seeded",
    save_freq: Any = 1,
    end: Callable[[], None] = stop,
    nap_seconds: float = 0.0,
) -> Any:
    """Weights, history and logs of all steps; STOPPED if `end` raised `Stop` after so many steps of this start."""
    import keras

    import stratagem

    strategy = stratagem.MirroredStrategy()
    model = make_model(strategy, draws)
    seen: list[tuple[int, int, dict[str, float]]] = []

    class Witness(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append((self.epoch, batch, {name: float(value) for name, value in logs.items()}))
            time.sleep(nap_seconds)
            if len(seen) == stop_after:
                end()

    callbacks: list[Any] = [Witness()]
    if folder is not None:
        callbacks.insert(0, stratagem.BackupAndRestore(folder, save_freq=save_freq))
    x, y = rows()
    arguments, options = source(data)
    with compiling_quickly():
        try:
            history = model.fit(
                *arguments, epochs=EPOCHS, validation_data=(x[:5], y[:5]), verbose=0, callbacks=callbacks, **options
            )
        except Stop:
            return STOPPED
    iterations = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    return {
        "weights": model.get_weights(),
        "optimizer": [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.optimizer.variables],
        "history": history.history,
        "epochs": history.epoch,
        "iterations": iterations,
        "seen": seen,
    }


def train_another_model(folder: str) -> str:
    """The error of going on with the backup of another model."""
    import keras

    import stratagem
    from stratagem.checkpoint import CheckpointMismatchError

    with stratagem.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(9), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    try:
        model.fit(*rows(), verbose=0, callbacks=[stratagem.BackupAndRestore(folder)])
    except CheckpointMismatchError as error:
        return str(error)
    return "no error"


def train_with_keras_backup(folder: str, stop_after: int) -> Any:
    """With Keras's own callback: epochs and iterations, or STOPPED."""
    import keras

    import stratagem

    model = make_model(stratagem.MirroredStrategy(), "none")
    steps = 0

    def count(batch: int, logs: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == stop_after:
            raise Stop

    callbacks = [keras.callbacks.BackupAndRestore(folder), keras.callbacks.LambdaCallback(on_train_batch_end=count)]
    with compiling_quickly():
        try:
            history = model.fit(*rows(), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)
        except Stop:
            return STOPPED
    iterations = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    return history.epoch, iterations, os.path.exists(folder)


def checkpoint_by_hand(folder: str, number: float) -> dict[str, Any]:
    """Save a model that was given `number`, then restore it after all of it was changed."""
    import keras

    import stratagem

    model = make_model(stratagem.MirroredStrategy(), "none")
    done = {"steps": 7}
    model.optimizer.build(model.trainable_variables)
    for weight in model.weights:
        weight.assign(keras.ops.full(weight.shape, number))
    checkpoint = stratagem.Checkpoint(model=model, done=done)
    path = checkpoint.save(os.path.join(folder, "by_hand.npz"))
    complete = os.path.exists(path)
    for weight in model.weights:
        weight.assign(keras.ops.zeros(weight.shape))
    done["steps"] = 0
    checkpoint.restore(path)
    return {"weights": model.get_weights(), "done": done, "complete": complete}


def restore_by_hand(folder: str) -> list[np.ndarray]:
    """The weights in the file that `checkpoint_by_hand` left."""
    import stratagem

    model = make_model(stratagem.MirroredStrategy(), "none")
    stratagem.Checkpoint(model=model, done={}).restore(os.path.join(folder, "by_hand.npz"))
    return model.get_weights()
