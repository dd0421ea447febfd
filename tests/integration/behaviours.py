# SPDX-License-Identifier: Apache-2.0
"""What each replica does and sees in one situation; runs in the replicas' processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np


def _strategy() -> Any:
    import stratagem

    return stratagem.MirroredStrategy()


def _model(strategy: Any, *layers: Any, **options: Any) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile(**{"optimizer": keras.optimizers.SGD(0.01), "loss": "mse", **options})
    return model


def _rows(count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 4)).astype("float32"), rng.normal(size=(count, 1)).astype("float32")


def rank() -> int:
    """This process's number."""
    return int(os.environ["STRATAGEM_RANK"])


def property_case(rows: int, batch: int, kind: str, weights: list[float] | None) -> dict[str, Any]:
    """Two epochs over `rows` rows with one kind of loss."""
    return train_small(_strategy().scope, rows, batch, kind, weights)


def plain_case(rows: int, batch: int, kind: str, weights: list[float] | None) -> dict[str, Any]:
    """The same in plain Keras."""
    return train_small(contextlib.nullcontext, rows, batch, kind, weights)


def train_small(scope: Any, rows: int, batch: int, kind: str, weights: list[float] | None) -> dict[str, Any]:
    """The same with or without a strategy."""
    import keras
    from keras import ops

    def mean_of_everything(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_true - y_pred))

    losses = {
        "mean": keras.losses.MeanSquaredError(),
        "sum": keras.losses.MeanSquaredError(reduction="sum"),
        "mean_with_sample_weight": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        "custom_mean": mean_of_everything,
    }
    x, y = _rows(rows)
    keras.utils.set_random_seed(1)
    with scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        sgd = keras.optimizers.SGD(0.01)
        model.compile(optimizer=sgd, loss=losses[kind], metrics=["mae"], weighted_metrics=["mse"])
    sample_weight = None if weights is None else np.resize(np.asarray(weights, "float32"), rows)
    history = model.fit(x, y, batch_size=batch, epochs=2, verbose=0, sample_weight=sample_weight)
    return {"history": history.history, "weights": model.get_weights(), "predict": model.predict(x, verbose=0)}


def dropout_masks(seed: int | None) -> list[Any]:
    """The masks that this replica's Dropout drew in the steps of two equal runs."""
    import keras

    runs = []
    for _ in range(2):
        masks: list[Any] = []

        class Seen(keras.layers.Dropout):
            """Keeps what it drew."""

            def call(self, inputs: Any, training: bool = False, masks: list[Any] = masks) -> Any:
                out = super().call(inputs * 0 + 1, training=training)
                if training and out.device.type != "meta":
                    masks.append(out.detach().numpy().copy())
                return inputs * out

        x, y = _rows(8)
        keras.utils.set_random_seed(2)
        model = _model(_strategy(), Seen(0.5, seed=seed))
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
        runs.append((masks, model.get_weights(), np.asarray(model.layers[0].seed_generator.state)))
    return runs


def rows_seen(kind: str) -> list[list[float]]:
    """The ids of the rows that this replica trained on, by epoch."""
    import keras
    import torch

    epochs: list[list[float]] = []

    class Seen(keras.layers.Layer):
        """Notes the first column of its input."""

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training and inputs.device.type != "meta":
                epochs[-1].extend(inputs[:, 0].tolist())
            return inputs

    class Epochs(keras.callbacks.Callback):
        """Starts a list for each epoch."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            epochs.append([])

    x = np.arange(50, dtype="float32")[:, None].repeat(4, axis=1)
    y = np.zeros((50, 1), "float32")
    if kind == "tf_data":
        import tensorflow as tf

        data: Any = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(16)
    elif kind == "loader":
        dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
        data = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True, generator=generator)
    else:
        data = x
    options = {"y": y, "batch_size": 16} if data is x else {}
    _model(_strategy(), Seen()).fit(data, epochs=3, verbose=0, callbacks=[Epochs()], **options)
    return epochs


def arrays_that_nobody_seeded() -> list[np.ndarray]:
    """Weights after training on rows that differ in every process."""
    rng = np.random.default_rng(rank() + 100)
    rows = 20 + 9 * rank()
    x, y = rng.normal(size=(rows, 4)).astype("float32"), rng.normal(size=(rows, 1)).astype("float32")
    model = _model(_strategy())
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return [*model.get_weights(), np.asarray(history.history["loss"])]


def generators_of_different_lengths() -> list[np.ndarray]:
    """Weights after training on data that ends at another step in every process."""

    def batches() -> Any:
        for _ in range(3 + 2 * rank()):
            yield _rows(8)

    model = _model(_strategy())
    model.fit(batches(), epochs=1, verbose=0)
    return [*model.get_weights(), np.asarray(model.optimizer.iterations)]


def callbacks_that_write(folder: str) -> dict[str, Any]:
    """Training with every callback of Keras that writes."""
    import keras

    here = Path(folder)
    x, y = _rows()
    model = _model(_strategy(), keras.layers.Dense(4), keras.layers.BatchNormalization())
    callbacks = [
        keras.callbacks.ModelCheckpoint(here / "best.keras", save_best_only=True, monitor="loss"),
        keras.callbacks.ModelCheckpoint(here / "epoch-{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.CSVLogger(here / "log.csv", append=True),
        keras.callbacks.BackupAndRestore(here / "backup"),
    ]
    model.fit(x, y, batch_size=9, epochs=3, verbose=0, callbacks=callbacks)
    # Complete when fit returns, on every replica.
    last = _model(_strategy(), keras.layers.Dense(4), keras.layers.BatchNormalization())
    last.load_weights(here / "epoch-3.weights.h5")
    model.save(here / "final.keras")
    final = keras.models.load_model(here / "final.keras")
    return {"weights": model.get_weights(), "last": last.get_weights(), "final": final.get_weights()}


def interrupted_and_resumed(folder: str) -> dict[str, Any]:
    """Weights of a run that was stopped after two epochs and started again, and of one that was not."""
    import keras

    class Stop(keras.callbacks.Callback):
        """Breaks off as a crash would."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise InterruptedError

    x, y = _rows()
    options = {"batch_size": 8, "epochs": 4, "verbose": 0, "shuffle": False}
    backup = keras.callbacks.BackupAndRestore(Path(folder) / "backup")
    try:
        _model(_strategy()).fit(x, y, callbacks=[backup, Stop()], **options)
    except InterruptedError:
        stopped = True
    backup = keras.callbacks.BackupAndRestore(Path(folder) / "backup")
    resumed = _model(_strategy())
    history = resumed.fit(x, y, callbacks=[backup], **options)
    whole = _model(_strategy())
    whole.fit(x, y, **options)
    return {
        "stopped": stopped,
        "epochs": history.epoch,
        "resumed": resumed.get_weights(),
        "whole": whole.get_weights(),
    }


def saved_by_the_chief_alone(folder: str) -> bool:
    """Save on replica 0 only; must not wait for anyone."""
    model = _model(_strategy())
    model.fit(*_rows(), verbose=0)
    if rank() == 0:
        model.save_weights(Path(folder) / "chief.weights.h5")
    return True


def logs_at_every_step() -> list[dict[str, float]]:
    """What a callback sees, step by step, in training and in evaluation."""
    import keras

    seen: list[dict[str, float]] = []

    class Listener(keras.callbacks.Callback):
        """Keeps all logs."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append({name: float(value) for name, value in logs.items()})

        on_test_batch_end = on_train_batch_end

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.on_train_batch_end(epoch, logs)

    x, y = _rows(25)
    model = _model(_strategy(), metrics=["mae", keras.metrics.R2Score()])
    model.fit(x, y, batch_size=7, epochs=2, verbose=0, validation_split=0.3, callbacks=[Listener()])
    return seen


def moving_statistics_inside_and_outside() -> dict[str, Any]:
    """BatchNormalization's moving mean as this replica trains with it, and as the job sees it."""
    import keras

    from stratagem.keras_fit._torch._runner import runner_of

    x, y = _rows(10)
    model = _model(_strategy(), keras.layers.BatchNormalization(momentum=0.5))
    model.fit(x, y, batch_size=10, epochs=1, verbose=0, shuffle=False)
    own = runner_of(model).replica_values()[0].numpy()
    return {"outside": model.layers[0].moving_mean.numpy(), "own": own[:4], "x": x}


def with_different_initial_weights() -> dict[str, Any]:
    """Weights of a model that every process initialised differently."""
    model = _model(_strategy())
    for weight in model.weights:
        weight.assign(weight * 0 + rank())
    model.fit(*_rows(), epochs=1, verbose=0)
    return {"weights": model.get_weights()}


def trained_in_another_scope() -> None:
    """A model of one strategy, compiled in the scope of another."""
    model = _model(_strategy())
    with _strategy().scope():
        model.compile(optimizer="sgd", loss="mse")


def made_outside_every_scope() -> None:
    """A model with variables of its own, brought into a scope."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="outsider")
    model.compile(optimizer="sgd", loss="mse")
    with _strategy().scope():
        model.fit(*_rows(), verbose=0)


def parts_of_a_batch_that_disagree() -> None:
    """A generator whose targets lack a row."""

    def batches() -> Any:
        while True:
            yield np.zeros((8, 4), "float32"), np.zeros((7, 1), "float32")

    _model(_strategy()).fit(batches(), steps_per_epoch=2, verbose=0)


def a_generator_that_raises() -> str:
    """The error that this replica gets."""

    def batches() -> Any:
        for _ in range(4):  # Keras reads two before it starts
            yield np.zeros((8, 4), "float32"), np.zeros((8, 1), "float32")
        raise OSError("the disk is on fire")

    try:
        _model(_strategy()).fit(batches(), steps_per_epoch=9, verbose=0)
    except Exception as error:  # noqa: BLE001 - which one it is, is what the test asks
        return f"{type(error).__name__}: {error}"
    return "no error"


def different_kinds_of_data() -> None:
    """Arrays on replica 0, a generator elsewhere."""
    x, y = _rows()
    model = _model(_strategy())
    if rank() == 0:
        model.fit(x, y, verbose=0)
    else:
        model.fit(((x, y) for _ in range(3)), verbose=0)


def trained_without_a_scope() -> list[str]:
    """What the log says, twice, of a model that was made outside the scope."""
    import logging

    import keras

    said: list[str] = []

    class Listener(logging.Handler):
        """Keeps the lines."""

        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener()
    logging.getLogger("stratagem").addHandler(listener)
    try:
        _strategy()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="outsider")
        model.compile(optimizer="sgd", loss="mse")
        model.fit(*_rows(), verbose=0)
        model.evaluate(*_rows(), verbose=0)
    finally:
        logging.getLogger("stratagem").removeHandler(listener)
    return said


def messages_besides_the_buckets(steps: int) -> int:
    """How many collectives a fit of so many steps makes, besides the buckets that gradients travel in."""
    import keras

    from stratagem.engines import select

    x, y = _rows(8 * steps)
    layers = [keras.layers.Dense(4, kernel_regularizer="l2"), keras.layers.BatchNormalization()]
    model = _model(_strategy(), *layers, metrics=["mae", keras.metrics.R2Score()])
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    transport: Any = select.engine().transport
    swap, calls = transport._swap, []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return swap(*args)

    transport._swap = counted
    try:
        model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    finally:
        del transport._swap
    return len(calls)
