# SPDX-License-Identifier: Apache-2.0
"""What users reported of training over several workers, as programs that run in each worker's process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from stratagem.errors import JobMismatchError


def said_of_a_data_set(strategy: Any) -> list[str]:
    """All that is logged, at any level, and all warnings while a data set of files is passed over three times."""
    import tensorflow as tf

    task = strategy.cluster_resolver.task_id
    with open(f"lines.{task}", "w") as file:
        file.write("1\n2\n3\n4\n5\n")
    said: list[str] = []

    class Listener(logging.Handler):
        """Keeps the lines."""

        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener, root = Listener(), logging.getLogger()
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            files = tf.data.Dataset.list_files(f"lines.{task}", shuffle=False)
            lines = tf.data.TextLineDataset(files).map(lambda line: tf.strings.to_number([line])).batch(2)
            distributed = strategy.experimental_distribute_dataset(lines)
            assert [len(list(distributed)) for _ in range(3)] == [3, 3, 3]
    finally:
        root.removeHandler(listener)
        root.setLevel(level)
    return said + [str(warning.message) for warning in caught]


EPOCHS = 3


def epochs_of_other_lengths(strategy: Any) -> dict[str, Any]:
    """Steps of three epochs over data of which the workers have different numbers of rows, or of batches."""
    import keras
    import tensorflow as tf

    task = strategy.cluster_resolver.task_id

    class Batches(keras.utils.PyDataset):
        """Three batches on the first worker, five on the second."""

        def __len__(self) -> int:
            return 3 + 2 * task

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return np.full((5, 1), index, "float32"), np.zeros((5, 1), "float32")

    def fit(data: Any) -> dict[str, Any]:
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
            # Its mean over an epoch is another one if a row is used twice, or not at all.
            rows = keras.metrics.MeanMetricWrapper(lambda y, predicted: y, name="rows")
            model.compile(keras.optimizers.SGD(0.001), "mse", metrics=[rows])
        history = model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False).history
        steps = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
        return {"steps": steps, "rows": history["rows"], "weights": [weight.tolist() for weight in model.get_weights()]}

    def sums(distributed: Any) -> Iterator[list[float]]:
        for _ in range(EPOCHS):
            totals = []
            for element in distributed:
                mine = float(sum(part.sum() for part in strategy.experimental_local_results(element)))
                each = strategy.experimental_distribute_values_from_function(lambda _, mine=mine: np.float32(mine))
                totals.append(float(strategy.reduce("SUM", each, axis=None)))
            yield totals

    ids = tf.range(23, dtype=tf.float32)[:, None]
    of_function = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(3 + 4 * context.input_pipeline_id).batch(2)
    )
    found = {
        "tf.data": fit(tf.data.Dataset.from_tensor_slices((ids, ids)).batch(4)),
        "function": list(sums(of_function)),
    }
    try:
        found["PyDataset"] = fit(Batches())["steps"]
    except JobMismatchError as error:
        found["PyDataset"] = str(error)
    return found
