# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` take a `DistributedDataset`, with class and sample weights, as they take arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stratagem.testing import ReplicaPool, assert_same_on_all_replicas
from tests.engines import compiling_quickly, thorough
from tests.integration.test_keras_fit import assert_equal_results

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
Pools = Callable[..., ReplicaPool]

ROWS, BATCH, REPLICAS = 43, 8, 2
WEIGHTS: dict[str, dict[str, Any]] = {"none": {}, "class": {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}, "sample": {}}


def _arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 5)).astype("float32"), rng.integers(0, 3, ROWS)
    weights = rng.random(ROWS).astype("float32")
    weights[BATCH : BATCH + BATCH // REPLICAS] = 0.0  # nothing counts on replica 0 in the second step
    return x, y, weights


def _model(scope: Any) -> Any:
    import keras

    with scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(3, "softmax")])
        loss = "sparse_categorical_crossentropy"
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], weighted_metrics=[loss])
    model.set_weights([np.linspace(-1, 1, weight.size).reshape(weight.shape) for weight in model.get_weights()])
    return model


def on_arrays() -> dict[str, Any]:
    """By kind of weights, what a model in plain Keras comes to."""
    found = {}
    for weighs, given in WEIGHTS.items():
        x, y, sample_weight = _arrays()
        options: Any = {"batch_size": BATCH, "verbose": 0}
        model = _model(contextlib.nullcontext)
        weights = sample_weight if weighs == "sample" else None
        history = model.fit(
            x,
            y,
            sample_weight=weights,
            epochs=2,
            shuffle=False,
            validation_data=(x, y) if weights is None else (x, y, weights),
            validation_batch_size=BATCH,
            **given,
            **options,
        )
        evaluated = model.evaluate(x, y, sample_weight=weights, **options)
        found[weighs] = {
            "history": history.history,
            "evaluate": evaluated,
            "predict": model.predict(x, **options),
            "weights": model.get_weights(),
        }
    return found


def on_data_sets(kind: str, weights: tuple[str, ...]) -> dict[str, Any]:
    """The same on a divided data set of one kind, for some kinds of weights."""
    import stratagem

    strategy = stratagem.MirroredStrategy()
    assert strategy.num_replicas_in_sync == REPLICAS

    def divided(arrays: tuple[np.ndarray, ...]) -> Any:
        def batches(size: int) -> Any:
            for start in range(0, ROWS, size):
                yield tuple(array[start : start + size] for array in arrays)

        if kind == "rows":
            return strategy.experimental_distribute_dataset(stratagem.ArrayDataset(arrays, BATCH))
        if kind == "generator":
            return strategy.experimental_distribute_dataset(lambda: batches(BATCH))
        # Each replica gets a batch of its own, one after the other.
        return strategy.distribute_datasets_from_function(lambda _: lambda: batches(BATCH // REPLICAS))

    found = {}
    with compiling_quickly():
        for weighs in weights:
            arrays, model = _arrays()[: 3 if weighs == "sample" else 2], _model(strategy.scope)
            history = model.fit(
                divided(arrays), epochs=2, verbose=0, validation_data=divided(arrays), **WEIGHTS[weighs]
            )
            found[weighs] = {
                "history": history.history,
                "evaluate": model.evaluate(divided(arrays), verbose=0),
                "predict": model.predict(divided(arrays[:1]), verbose=0),
                "weights": model.get_weights(),
            }
    return found


ALL = tuple(WEIGHTS)


@pytest.mark.parametrize(
    ("engine", "processes", "asked"),
    [
        ("torch", 2, {"rows": ALL, "generator": ALL, "function": ALL}),
        ("jax", 1, {"rows": ("class", "sample"), "function": ("sample",)}),
        thorough("jax", 2, {"rows": ("sample",), "function": ("class",)}),
        *(thorough("jax", processes, {"rows": ALL, "generator": ALL, "function": ALL}) for processes in (1, 2)),
    ],
)
def test_report_46_fit_on_a_distributed_data_set_with_class_or_sample_weights_is_fit_on_the_arrays(
    engine: str, processes: int, asked: dict[str, tuple[str, ...]], replica_pool: Pools
) -> None:
    (expected,) = replica_pool(1).run(on_arrays)
    pool = replica_pool(REPLICAS, backend=engine, processes=processes)
    for kind, weights in asked.items():
        found = assert_same_on_all_replicas(pool.run(on_data_sets, kind, weights))
        assert set(found) == set(weights)
        for weighs in weights:
            assert_equal_results(found[weighs], expected[weighs], 1e-5)


def _refused(what: str) -> str:
    import keras

    import stratagem

    strategy = stratagem.MirroredStrategy()
    data = strategy.experimental_distribute_dataset(stratagem.ArrayDataset(_arrays(), BATCH))
    model = _model(contextlib.nullcontext if what == "no scope" else strategy.scope)
    given: dict[str, Any] = {
        "targets": {"y": np.ones(ROWS)},
        "both weights": {"class_weight": {0: 2.0}},
        "no scope": {},
    }[what]
    try:
        model.fit(data, verbose=0, **given)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        keras.utils.clear_session()
    return "nothing was raised"


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_what_cannot_be_meant_beside_a_distributed_data_set_is_refused_with_a_fix(
    engine: str, replica_pool: Pools
) -> None:
    pool = replica_pool(1, backend=engine)
    texts = {what: pool.run(_refused, what)[0] for what in ("targets", "both weights", "no scope")}
    assert texts["targets"].startswith("ArgumentError: targets were given beside a DistributedDataset\n  fix: ")
    assert "class_weight needs a data set of (inputs, targets)" in texts["both weights"]
    assert texts["no scope"].startswith("ContextError: a DistributedDataset was given to a model that was not made")
