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

        def call(self, x: Any, training: bool = False) -> Any:
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
