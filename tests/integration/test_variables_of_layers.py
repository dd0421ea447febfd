# SPDX-License-Identifier: Apache-2.0
"""A layer's own `stratagem.Variable` counts in `fit` as on one device, and is saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import ENGINES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROWS = 16


def rows_seen(folder: str, batch_size: int) -> dict[str, float]:
    """What a layer counted in one epoch, and what it counts after a second one and loading the first."""
    import keras

    import stratagem

    class Counting(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seen = stratagem.Variable(
                0.0,
                synchronization=stratagem.VariableSynchronization.ON_READ,
                aggregation=stratagem.VariableAggregation.SUM,
            )
            self.average = stratagem.Variable(0.0, trainable=False, aggregation=stratagem.VariableAggregation.MEAN)

            self.calls = stratagem.Variable(
                0.0,
                synchronization=stratagem.VariableSynchronization.ON_READ,
                aggregation=stratagem.VariableAggregation.SUM,
            )

        def call(self, x: Any, training: bool = False) -> Any:
            # Also where Keras only works out shapes, outside of replicas.
            self.calls.assign_add(keras.ops.mean(x))
            if training:
                self.seen.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "float32"))
                self.average.assign(keras.ops.mean(x))
            return x

    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        counting = Counting()
        model = keras.Sequential([keras.Input((3,)), counting, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((ROWS, 3), "float32")
    model.fit(x, x[:, :1], batch_size=batch_size, verbose=0)
    after_one = float(counting.seen.numpy())
    path = Path(folder) / "counted.weights.h5"
    model.save_weights(path)
    model.fit(x, x[:, :1], batch_size=batch_size, verbose=0)
    after_two = float(counting.seen.numpy())
    model.load_weights(path)
    return {
        "after one": after_one,
        "after two": after_two,
        "loaded": float(counting.seen.numpy()),
        "mean": float(counting.average.numpy()),
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_size", [8, 7, 15])
def test_a_layer_counts_rows_as_on_one_device_and_is_saved_by_all_together(
    engine: str, batch_size: int, replica_pool: Any, tmp_path: Path
) -> None:
    for found in replica_pool(2, backend=engine).run(rows_seen, str(tmp_path), batch_size):
        assert found == {"after one": ROWS, "after two": 2 * ROWS, "loaded": ROWS, "mean": pytest.approx(1.0)}


def stopped_and_resumed(folder: str) -> list[list[float]]:
    """What a layer's variable with a copy per replica comes to: in two epochs, and in two that were interrupted."""
    import keras

    import stratagem

    class Averaging(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.average = stratagem.Variable(
                0.0,
                synchronization=stratagem.VariableSynchronization.ON_READ,
                aggregation=stratagem.VariableAggregation.MEAN,
            )

        def call(self, x: Any) -> Any:
            self.average.assign(0.5 * self.average.value + keras.ops.mean(x))
            return x

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyError("stopped")

    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    found = []
    for name, times in (("whole", 1), ("stopped", 2)):
        for attempt in range(times):
            strategy = stratagem.MirroredStrategy()
            keras.utils.set_random_seed(1)
            with strategy.scope():
                averaging = Averaging()
                model = keras.Sequential([keras.Input((3,)), averaging, keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            backup = stratagem.BackupAndRestore(str(Path(folder) / name), save_freq=2)
            path = Path(folder) / "last.weights.h5"
            checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=1)
            callbacks: list[Any] = [checkpoint, backup, Stop()] if attempt < times - 1 else [checkpoint, backup]
            try:
                model.fit(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
            except KeyError:
                assert attempt < times - 1
        found.append([float(averaging.average.value), *np.ravel(model.layers[-1].get_weights()[0]).tolist()])
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_a_variable_with_copies_is_backed_up_by_the_chief_alone_and_goes_on_where_it_was(
    engine: str, replica_pool: Any, tmp_path: Path
) -> None:
    for rank, (whole, resumed) in enumerate(replica_pool(2, backend=engine).run(stopped_and_resumed, str(tmp_path))):
        assert resumed == pytest.approx(whole, rel=1e-6), rank
