# SPDX-License-Identifier: Apache-2.0
"""What each replica does and sees in one situation; runs in the replicas' processes."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.engines import compiling_quickly


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


def property_case(rows: int, batch: int, kind: str, weights: list[float] | None, replicas: int) -> dict[str, Any]:
    """Two epochs over `rows` rows with one kind of loss, on all of the `replicas` devices."""
    strategy = _strategy()
    assert strategy.num_replicas_in_sync == replicas
    with compiling_quickly():
        return train_small(strategy.scope, rows, batch, kind, weights)


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
    rng = np.random.default_rng(1)  # the two engines would initialise differently
    with scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
        sgd = keras.optimizers.SGD(0.01)
        model.compile(optimizer=sgd, loss=losses[kind], metrics=["mae"], weighted_metrics=["mse"])
    sample_weight = None if weights is None else np.resize(np.asarray(weights, "float32"), rows)
    history = model.fit(x, y, batch_size=batch, epochs=2, verbose=0, sample_weight=sample_weight, shuffle=False)
    return {"history": history.history, "weights": model.get_weights(), "predict": model.predict(x, verbose=0)}


def dropout_masks(seed: int | None) -> list[Any]:
    """What Dropout kept of each of eight rows in the steps of two equal runs, and its seed's state afterwards."""
    import keras

    runs = []
    for _ in range(2):
        keras.utils.set_random_seed(2)
        table = keras.layers.Embedding(8, 16, embeddings_initializer="zeros")
        with _strategy().scope():
            dropout = keras.layers.Dropout(0.5, seed=seed)
            model = keras.Sequential([keras.Input((), dtype="int32"), table, dropout])
            # The gradient of a row of the table is what Dropout kept of it.
            model.compile(optimizer=keras.optimizers.SGD(1.0), loss=_sum_of_outputs())
        seen = [np.array(table.get_weights()[0])]
        for _ in range(2):
            model.train_on_batch(np.arange(8), np.zeros((8, 1), "float32"))
            seen.append(np.array(table.get_weights()[0]))
        masks = [later != before for before, later in itertools.pairwise(seen)]
        runs.append((masks, np.asarray(dropout.seed_generator.state)))
    return runs


def plain_seeded_draws(rows: int) -> dict[str, Any]:
    """`seeded_draws` in plain Keras."""
    return _seeded_draws(contextlib.nullcontext, rows)


def seeded_draws(rows: int) -> dict[str, Any]:
    """What a model comes to whose layers draw with a seed, over batches of eight."""
    with compiling_quickly():
        return _seeded_draws(_strategy().scope, rows)


def _seeded_draws(scope: Any, rows: int) -> dict[str, Any]:
    import keras

    layers = keras.layers
    rng = np.random.default_rng(0)
    x, y = rng.random((rows, 6, 6, 2)).astype("float32"), rng.normal(size=(rows, 1)).astype("float32")
    with scope():
        # What is drawn for each row, as several numbers for each, for a row and channel, and for all rows at once.
        drawing = [
            layers.RandomFlip(seed=6),
            layers.RandomBrightness(0.3, value_range=(0, 1), seed=7),
            layers.RandomErasing(fill_value=0.1, value_range=(0, 1), seed=8),
            layers.SpatialDropout2D(0.2, seed=2),
            layers.Dropout(0.2, seed=1),
            layers.AlphaDropout(0.2, seed=3),
            layers.GaussianNoise(0.4, seed=4),
            layers.Dropout(0.2, noise_shape=(1, None, None, 1), seed=5),
        ]
        model = keras.Sequential([keras.Input((6, 6, 2)), *drawing, layers.Flatten(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    model.set_weights([np.linspace(-1, 1, weight.size).reshape(weight.shape) for weight in model.get_weights()])
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return {"history": history.history, "weights": model.get_weights()}


def draws_of_a_loop(rows: int) -> dict[str, Any]:
    """What layers draw for the rows of a data set in a function that `strategy.run` runs."""
    import keras

    import stratagem

    strategy = _strategy()
    keras.utils.set_random_seed(4)
    with strategy.scope():
        seeded, unseeded = keras.layers.Dropout(0.5, seed=1), keras.layers.Dropout(0.5)

    def step(batch: Any) -> Any:
        return seeded(batch, training=True), unseeded(batch, training=True)

    found: list[list[np.ndarray]] = []
    for batch in strategy.experimental_distribute_dataset(stratagem.ArrayDataset(np.ones((rows, 32), "float32"), 8)):
        kept = strategy.gather(strategy.run(step, args=(batch,)), axis=0)
        found.append([keras.ops.convert_to_numpy(part) > 0 for part in kept])
    return {"seeded": np.concatenate([kept for kept, _ in found]), "unseeded": found[0][1]}


def rows_seen(kind: str) -> list[list[list[int]]]:
    """How often each of 50 rows was trained on in each step, by epoch; nobody has seeded the shuffle."""
    import keras

    epochs: list[list[list[int]]] = []
    table = keras.layers.Embedding(50, 1, embeddings_initializer="zeros")

    class Steps(keras.callbacks.Callback):
        """Compares the table before and after a step."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            epochs.append([])

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.before = np.array(self.model.get_weights()[0])

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            change = self.before - np.array(self.model.get_weights()[0])
            epochs[-1].append(np.rint(change[:, 0]).astype(int).tolist())

    with _strategy().scope():
        model = keras.Sequential([keras.Input((), dtype="int32"), table])
        # Each row takes 1 off its number in the table.
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss=_sum_of_outputs())
    data, options = _shuffled(kind)
    model.fit(data, epochs=3, verbose=0, callbacks=[Steps()], **options)
    return epochs


def _sum_of_outputs() -> Any:
    import keras

    class Total(keras.losses.Loss):
        """Whose gradient is 1 for each row."""

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.sum(y_pred, axis=-1)

    return Total(reduction="sum")


def _shuffled(kind: str) -> tuple[Any, dict[str, Any]]:
    """The ids 0 to 49 as a source that shuffles, and what to give to fit besides."""
    x, y = np.arange(50), np.zeros((50, 1), "float32")
    if kind == "tf_data":
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(16), {}
    if kind == "loader":
        import torch

        dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
        return torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True, generator=generator), {}
    return x, {"y": y, "batch_size": 16}


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

    def model() -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization()]
        return _model(_strategy(), *layers, optimizer=keras.optimizers.Adam(0.01))

    x, y = _rows()
    options = {"batch_size": 7, "epochs": 4, "verbose": 0, "shuffle": False}
    backup = keras.callbacks.BackupAndRestore(Path(folder) / "backup")
    try:
        model().fit(x, y, callbacks=[backup, Stop()], **options)
    except InterruptedError:
        stopped = True
    backup = keras.callbacks.BackupAndRestore(Path(folder) / "backup")
    resumed = model()
    history = resumed.fit(x, y, callbacks=[backup], **options)
    whole = model()
    whole.fit(x, y, **options)
    return {
        "stopped": stopped,
        "epochs": history.epoch,
        "resumed": resumed.get_weights(),
        "whole": whole.get_weights(),
    }


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


def moving_statistics() -> dict[str, np.ndarray]:
    """What BatchNormalization keeps after a batch of ten rows, one of seven and one of two."""
    import keras

    x, y = _rows(19)
    model = _model(_strategy(), keras.layers.BatchNormalization(momentum=0.5))
    for batch in (slice(0, 10), slice(10, 17), slice(17, 19)):
        model.train_on_batch(x[batch], y[batch])
    layer = model.layers[0]
    return {
        "mean": np.asarray(layer.moving_mean),
        "variance": np.asarray(layer.moving_variance),
        "weights": layer.get_weights(),
        "x": x,
    }


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
