# SPDX-License-Identifier: Apache-2.0
"""One process with four replicas, two with two, and four with one train alike (I3), and write each file once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratagem.errors import ReplicaFailedError
from stratagem.testing import assert_same_on_all_replicas
from tests.integration.test_keras_fit import assert_equal_results

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

REPLICAS = 4
PROCESSES = (1, 2, 4)


def train(folder: str, data: str) -> dict[str, Any]:
    """Fit with a tail, evaluate, predict and save, in every process of a job."""
    import keras

    import stratagem

    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 6)).astype("float32"), rng.integers(0, 3, 50)

    def batches() -> Any:
        for start in range(0, 50, 16):
            yield x[start : start + 16], y[start : start + 16]

    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="relu", kernel_regularizer="l2"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    path = Path(folder) / "model.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(Path(folder) / "{epoch}.keras")
    if data == "arrays":
        history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[checkpoint])
    else:
        history = model.fit(batches(), epochs=1, verbose=0, callbacks=[checkpoint])
    model.save(path)
    assert path.exists(), "complete when any process returns"
    loaded = keras.models.load_model(path)
    return {
        "history": history.history,
        "evaluate": model.evaluate(x, y, batch_size=16, verbose=0),
        "predict": model.predict(x[:13], batch_size=8, verbose=0),
        "weights": model.get_weights(),
        "saved": loaded.get_weights(),
        "files": sorted(file.name for file in Path(folder).iterdir()),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("data", ["arrays", "generator"])
def test_every_topology_gives_the_same_results_and_files(data: str, replica_pool: Any, tmp_path: Path) -> None:
    results: dict[int, Any] = {}
    for processes in PROCESSES:
        folder = tmp_path / str(processes)
        folder.mkdir()
        pool = replica_pool(REPLICAS, backend="jax", processes=processes)
        everyones = pool.run(train, str(folder), data, timeout_seconds=200)
        assert len(everyones) == processes
        assert_same_on_all_replicas(everyones)
        results[processes] = everyones[0]
    for processes in PROCESSES[1:]:
        assert results[processes].pop("files") == results[1]["files"]
    results[1].pop("files")
    for processes in PROCESSES[1:]:
        assert_equal_results(results[processes], results[1], 2e-6)


def fail_reading() -> None:
    import keras

    import stratagem

    def batches() -> Any:
        yield np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
        raise OSError("the disk has gone")

    with stratagem.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(batches(), verbose=0)


def test_a_reader_that_fails_on_the_chief_fails_everywhere_with_its_reason(replica_pool: Any) -> None:
    with pytest.raises(ReplicaFailedError, match="the disk has gone"):
        replica_pool(REPLICAS, backend="jax", processes=2).run(fail_reading, timeout_seconds=100)
