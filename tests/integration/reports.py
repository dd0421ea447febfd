# SPDX-License-Identifier: Apache-2.0
"""What users reported of other libraries, as programs that run in the replicas' processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.errors import ArgumentError
from tests.engines import compiling_quickly


def _strategy() -> Any:
    import keras

    import stratagem

    strategy = stratagem.MirroredStrategy()  # first of all: anything that computes would start jax
    keras.utils.clear_session()
    return strategy


def _linear(strategy: Any, features: int, optimizer: Any, **options: Any) -> Any:
    """A model of one matrix, which starts at zero, so that what it comes to can be computed by hand."""
    import keras

    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((features,)), layer])
        model.compile(**{"optimizer": optimizer, "loss": "mse", **options})
    return model


def _numbers(rows: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(rows)
    return draw.normal(size=(rows, features)).astype("float32"), draw.normal(size=(rows, 1)).astype("float32")


def noise_while_nothing_is_divided(folder: str) -> str:
    """All that a worker that is alone writes to stderr while it reads files, by a loop of its own and by `fit`."""
    import logging

    import keras
    import tensorflow as tf

    for number in range(2):
        (Path(folder) / f"{number}.txt").write_text("1\n2\n3\n")
    said = os.path.join(folder, f"stderr-{os.getpid()}")
    kept, handler, logger = os.dup(2), logging.FileHandler(said), logging.getLogger("stratagem")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    os.dup2(handler.stream.fileno(), 2)
    try:
        strategy = _strategy()
        model = _linear(strategy, 1, keras.optimizers.SGD(0.01))
        files = tf.data.Dataset.list_files(f"{folder}/*.txt", shuffle=False)
        lines = tf.data.TextLineDataset(files).map(lambda line: tf.strings.to_number([line])).batch(4)
        assert len(list(strategy.experimental_distribute_dataset(lines))) == 2
        # Keras itself has a word to say of a data set that it would shuffle, or whose steps nobody knows.
        pairs = lines.map(lambda x: (x, x)).apply(tf.data.experimental.assert_cardinality(2))
        model.fit(pairs, epochs=2, verbose=0, shuffle=False)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
        handler.close()
    return Path(said).read_text()


def seven_calls_with_23_rows() -> dict[str, Any]:
    """Every way into a model, with rows that no number of replicas divides; what came out, and the weights by then."""
    import keras

    strategy = _strategy()
    x, y = _numbers(23, 3)
    model = _linear(strategy, 3, keras.optimizers.SGD(0.05), metrics=["mae"])
    with compiling_quickly():
        history = model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
        validated = model.fit(x, y, batch_size=23, epochs=1, verbose=0, validation_data=(x[:7], y[:7]))
        model.train_on_batch(x, y)
        return {
            "steps": int(model.optimizer.iterations),
            "history": history.history,
            "validated": validated.history,
            "weights": model.get_weights(),
            "evaluate": model.evaluate(x, y, batch_size=8, verbose=0),
            "test_on_batch": model.test_on_batch(x, y),
            "predict": model.predict(x, batch_size=8, verbose=0),
            "predict_on_batch": model.predict_on_batch(x),
            "x": x,
            "y": y,
        }


def synchronized_statistics(dtype: str, rows: int) -> dict[str, Any]:
    """What `BatchNormalization(synchronized=True)` keeps of one batch, some columns of which are far from zero."""
    import keras

    strategy = _strategy()
    draw = np.random.default_rng(5)
    x = (draw.normal(size=(rows, 4)) * [1, 0.5, 3, 2] + [0, 50, -300, 900]).astype(dtype.removeprefix("mixed_"))
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True, momentum=0.0, dtype=dtype)
        model = keras.Sequential([keras.Input((4,), dtype=x.dtype.name), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    with compiling_quickly():
        model.fit(x, np.ones((rows, 1), "float32"), batch_size=rows, epochs=1, verbose=0)
    return {
        "x": x,
        "mean": np.asarray(keras.ops.convert_to_numpy(layer.moving_mean)),
        "variance": np.asarray(keras.ops.convert_to_numpy(layer.moving_variance)),
        "weights": [np.asarray(keras.ops.convert_to_numpy(weight)) for weight in model.trainable_weights],
    }


def losses_of_an_own_train_step(rows: int) -> dict[str, list[float]]:
    """The history of a training step of the user's own, whose loss is the mean of the numbers of its rows."""
    import keras
    from keras import ops

    class Own(keras.Model):
        """Reports its loss as it is, and by a tracker."""

        def loss_of(self, x: Any, y: Any) -> Any:
            return ops.mean(y + 0 * self(x, training=True))

        def updated(self, loss: Any) -> dict[str, Any]:
            self.tracker.update_state(loss)
            return {"loss": loss, "tracked": self.tracker.result()}

        @property
        def metrics(self) -> list[Any]:
            return [self.tracker]

    class OnTorch(Own):
        def train_step(self, data: Any) -> dict[str, Any]:
            import torch

            self.zero_grad()
            loss = self.loss_of(*data)
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
            return self.updated(loss)

    class OnJax(Own):
        def train_step(self, state: Any, data: Any) -> Any:
            trainable, non_trainable, optimizer, metrics = state
            x, y = data
            predicted, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
            loss = ops.mean(y + 0 * predicted)
            metrics = self.tracker.stateless_update_state(metrics, loss)
            logs = {"loss": loss, "tracked": self.tracker.stateless_result(metrics)}
            return logs, (trainable, non_trainable, optimizer, metrics)

    strategy = _strategy()
    with strategy.scope():
        inputs = keras.Input((1,))
        own = OnTorch if keras.backend.backend() == "torch" else OnJax
        model = own(inputs, keras.layers.Dense(1)(inputs))
        model.tracker = keras.metrics.Mean(name="tracked")
        model.compile(keras.optimizers.SGD(0.1))
    y = np.arange(1, rows + 1, dtype="float32")[:, None]
    with compiling_quickly():
        return model.fit(y, y, batch_size=rows, epochs=2, verbose=0, shuffle=False).history


METRIC_ROWS = 8


def metrics_read_at_every_step(num_steps: int) -> dict[str, Any]:
    """Metrics of every kind: at each step of an epoch read twice, and now and then what all rows so far come to."""
    import keras
    from keras import ops

    class Largest(keras.metrics.Metric):
        """A maximum, which is no sum."""

        def __init__(self) -> None:
            super().__init__(name="largest")
            self.seen = self.add_variable((), "zeros", name="seen")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.seen.assign(ops.maximum(self.seen, ops.max(ops.abs(y_true - y_pred))))

        def result(self) -> Any:
            return ops.convert_to_tensor(self.seen)

    def made() -> list[Any]:
        return [
            keras.metrics.AUC(num_thresholds=21, name="auc"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.MeanIoU(2, sparse_y_true=False, sparse_y_pred=False, name="iou"),
            keras.metrics.F1Score(average="macro", name="f1"),
            Largest(),
        ]

    strategy = _strategy()
    draw = np.random.default_rng(2)
    x = draw.normal(size=(num_steps * METRIC_ROWS, 2)).astype("float32")
    y = np.eye(2, dtype="float32")[(x[:, 0] + draw.normal(size=len(x)) > 0).astype(int)]
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
        metrics = made()
        # The rate is nought: then what it predicts in the end is what it predicted at each step.
        model.compile(keras.optimizers.SGD(0.0), "categorical_crossentropy", metrics=metrics)
    model.set_weights([np.array([[-1.0, 1.0], [0.3, -0.3]]), np.array([0.1, -0.1])])
    seen: dict[str, list[float]] = {metric.name: [] for metric in metrics}
    again: list[tuple[str, float, float]] = []

    class Reader(keras.callbacks.Callback):
        """Reads all metrics by the logs, and at times one of them twice more, as a program does that prints it."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            for name, values in seen.items():
                values.append(float(logs[name]))
            if batch % 10:
                return
            assert self.model is model  # which, on jax, gives the metrics their values back
            metric = metrics[batch // 10 % len(metrics)]
            for _ in range(2):
                again.append((metric.name, seen[metric.name][-1], float(ops.convert_to_numpy(metric.result()))))

    with compiling_quickly():
        history = model.fit(x, y, batch_size=METRIC_ROWS, verbose=0, shuffle=False, callbacks=[Reader()]).history
        predicted = model.predict(x, batch_size=1000, verbose=0)
    expected: dict[int, dict[str, float]] = {}
    for steps in (1, num_steps // 2, num_steps):
        alone, rows = made(), steps * METRIC_ROWS
        for metric in alone:
            metric.update_state(y[:rows], predicted[:rows])
        expected[steps] = {metric.name: float(ops.convert_to_numpy(metric.result())) for metric in alone}
    return {"seen": seen, "again": again, "expected": expected, "history": history}


def accumulated(rows: Sequence[int], steps: int, reduction: str) -> list[np.ndarray]:
    """Weights after batches of so many rows, the gradients of `steps` of which make one update."""
    import keras

    strategy = _strategy()
    x, y = _numbers(sum(rows), 3)
    sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
    model = _linear(strategy, 3, sgd, loss=keras.losses.MeanSquaredError(reduction=reduction))
    ends = np.cumsum(rows)

    def batches() -> Iterator[Any]:
        for start, end in zip(ends - rows, ends, strict=True):
            yield x[start:end], y[start:end]

    with compiling_quickly():
        model.fit(batches(), epochs=1, verbose=0)
    return [model.get_weights()[0], x, y]


def predictions_of_row_numbers(counts: Sequence[int], batch_size: int) -> dict[int, Any]:
    """What a model predicts that gives its input back, in a structure, for so many rows."""
    import keras

    strategy = _strategy()
    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, {"same": inputs * 1.0, "more": [inputs + 1, (inputs * 2,)]})
    ids = np.arange(max(counts), dtype="float32")[:, None]
    found: dict[int, Any] = {}
    for count in counts:
        try:
            with compiling_quickly():
                found[count] = model.predict(ids[:count], batch_size=batch_size, verbose=0)
        except ArgumentError as error:
            found[count] = str(error)
    return found


_watched: list[tuple[str, list[str]]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched and isinstance(arguments[0], (str, bytes, os.PathLike)):
        folder, found = _watched[-1]
        path, (mode, flags) = os.fsdecode(arguments[0]), arguments[1:]
        writes = set(mode or "") & set("wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if writes and path.startswith(folder):
            found.append(os.path.basename(path))


def saved_by_all_to_one_path(folder: str) -> dict[str, Any]:
    """All processes save a model to one path; the files that this process opened to write, and what lay there then."""
    import keras

    strategy = _strategy()
    x, y = _numbers(8, 3)
    model = _linear(strategy, 3, keras.optimizers.Adam(0.1))
    model.fit(x, y, verbose=0)
    if not hasattr(sys, "_stratagem_test_watches"):  # an audit hook stays for the life of the process
        sys.addaudithook(_watch)
        sys._stratagem_test_watches = True
    path, opened = Path(folder) / "model.keras", list[str]()
    _watched.append((folder, opened))
    try:
        model.save(path)
    finally:
        _watched.pop()
    loaded = keras.models.load_model(path)
    return {"opened": opened, "weights": model.get_weights(), "loaded": loaded.get_weights()}


def saved_by_the_chief_alone(folder: str) -> bool:
    """Save in every way on replica 0 only, which must not wait for anyone; then all train on."""
    import keras

    from stratagem.engines import select

    strategy = _strategy()
    x, y = _numbers(8, 3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(x, y, verbose=0)
    if select.engine().rank == 0:
        model.save(Path(folder) / "chief.keras")
        model.save_weights(Path(folder) / "chief.weights.h5")
    model.fit(x, y, verbose=0)
    return True


RESUMED_ROWS, RESUMED_BATCH = 160, 4


class Stop(Exception):
    """Ends a training in its middle, as a kill does, but not its process."""


def times_trained_on(backup: str, stop_after: int | None, kind: str) -> list[int] | None:
    """How often each row was trained on in an epoch of 40 steps; None if it was stopped after `stop_after` of them."""
    import keras

    import stratagem

    class Total(keras.losses.Loss):
        """Whose gradient is 1 for each row."""

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.sum(y_pred, axis=-1)

    def stop(batch: int, logs: Any) -> None:
        if stop_after is not None and batch + 1 == stop_after:
            raise Stop

    strategy = _strategy()
    keras.utils.set_random_seed(3)
    table = keras.layers.Embedding(RESUMED_ROWS, 1, embeddings_initializer="zeros")
    with strategy.scope():
        model = keras.Sequential([keras.Input((), dtype="int32"), table])
        # Each row takes 1 off its number in the table, which the backup holds.
        model.compile(keras.optimizers.SGD(1.0), Total(reduction="sum"))
    callbacks = [
        stratagem.BackupAndRestore(backup, save_freq=5),
        keras.callbacks.LambdaCallback(on_train_batch_end=stop),
    ]
    x, y = np.arange(RESUMED_ROWS), np.zeros((RESUMED_ROWS, 1), "float32")

    def batches() -> Iterator[Any]:
        order = np.random.default_rng(8).permutation(RESUMED_ROWS)
        for start in range(0, RESUMED_ROWS, RESUMED_BATCH):
            yield x[order[start : start + RESUMED_BATCH]], y[:RESUMED_BATCH]

    source: Any = (x, y) if kind == "shuffled arrays" else (batches(),)
    options = {"batch_size": RESUMED_BATCH} if kind == "shuffled arrays" else {"steps_per_epoch": 40}
    try:
        with compiling_quickly():
            model.fit(*source, epochs=1, verbose=0, callbacks=callbacks, **options)
    except Stop:
        return None
    return np.rint(-model.get_weights()[0][:, 0]).astype(int).tolist()


SCALED_STEPS, OVERFLOWS_AT, GROWS_AFTER = 50, 12, 20


def scales_of_losses() -> dict[str, list[Any]]:
    """After each of 50 steps the scale of the loss, its counter and the weights; in one the last row's loss is inf."""
    import keras

    strategy = _strategy()
    x, y = _numbers(4 * SCALED_STEPS, 2)
    x[4 * OVERFLOWS_AT + 3] = np.inf
    scaled = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=1024.0, dynamic_growth_steps=GROWS_AFTER
    )
    model = _linear(strategy, 2, scaled)
    seen: dict[str, list[Any]] = {"scale": [], "counter": [], "iterations": [], "weights": []}

    class Reader(keras.callbacks.Callback):
        """Reads what belongs to the optimizer."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen["weights"].append(self.model.get_weights()[0])  # on jax the optimizer has its values from here on
            seen["scale"].append(float(keras.ops.convert_to_numpy(scaled.dynamic_scale)))
            seen["counter"].append(int(keras.ops.convert_to_numpy(scaled.step_counter)))
            seen["iterations"].append(int(keras.ops.convert_to_numpy(scaled.inner_optimizer.iterations)))

    with compiling_quickly():
        model.fit(x, y, batch_size=4, verbose=0, shuffle=False, callbacks=[Reader()])
    return seen
