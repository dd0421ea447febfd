# SPDX-License-Identifier: Apache-2.0
"""What `fit` compiles on jax, how often, and which kind of step does what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import keras
import numpy as np
import pytest

from stratagem.keras_fit._jax import _replica_steps
from stratagem.keras_fit._jax._steps import Steps

pytestmark = [
    pytest.mark.timeout(120),
    # Keras's own variables, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(800, 6)).astype("float32"), RNG.integers(0, 3, 800)
REPLICAS = 4


@contextmanager
def counted() -> Iterator[list[str]]:
    """The names of the functions that jax compiles meanwhile."""
    names: list[str] = []

    def note(event: str, _: float, **details: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


class Counting(keras.layers.Layer):
    """Counts the times that its code runs, which jax runs once a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        return x


def classifier(*layers: Any, kind: type[keras.Model] = keras.Model, **options: Any) -> Any:
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6,))
    x = inputs
    for layer in layers or (keras.layers.Dense(8, activation="relu"),):
        x = layer(x)
    model = kind(inputs, keras.layers.Dense(3, activation="softmax")(x))
    settings = {"optimizer": keras.optimizers.SGD(0.1), "loss": "sparse_categorical_crossentropy", **options}
    model.compile(metrics=["accuracy"], **settings)
    return model


def steps_compiled(names: list[str]) -> list[str]:
    return [name for name in names if name in ("jit(train)", "jit(step)", "train", "step")]


def test_a_hundred_equal_batches_are_one_trace_and_one_compilation(strategy: Any) -> None:
    counting = Counting()
    with strategy.scope():
        model = classifier(counting)
    with counted() as names:
        model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
        before = counting.calls
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert len(steps_compiled(names)) == 1, names
    assert counting.calls == before


def test_a_ragged_tail_is_one_compilation_more(strategy: Any) -> None:
    counting = Counting()
    with strategy.scope():
        model = classifier(counting)
    with counted() as names:
        model.fit(X[:16], Y[:16], batch_size=16, verbose=0)
        before = counting.calls
        model.fit(X[:790], Y[:790], batch_size=16, epochs=3, verbose=0)
    assert len(steps_compiled(names)) == 2, names
    assert counting.calls == before + 1


def test_one_mesh_serves_every_model_of_a_job(strategy: Any) -> None:
    with strategy.scope():
        first, second = classifier(), classifier()
    for model in (first, second):
        model.fit(X[:16], Y[:16], batch_size=8, verbose=0)
    meshes = {id(weight.value.sharding.mesh) for model in (first, second) for weight in model.weights}
    assert len(meshes) == 1


def test_the_weights_after_fit_lie_whole_on_every_device(strategy: Any) -> None:
    with strategy.scope():
        model = classifier()
    model.fit(X[:30], Y[:30], batch_size=8, verbose=0)
    for weight in model.weights:
        shards = [np.asarray(shard.data) for shard in weight.value.addressable_shards]
        assert len(shards) == REPLICAS
        assert all(np.array_equal(shard, shards[0]) for shard in shards)


@pytest.mark.parametrize(
    ("what", "rows", "options"),
    [
        ("batches that divide evenly", 32, {}),
        ("a batch that does not", 30, {"whole": True}),
    ],
)
def test_batches_that_divide_evenly_run_on_each_replicas_rows(
    strategy: Any, what: str, rows: int, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original = _replica_steps.train

    def spy(model: Any, num_replicas: int, state: Any, data: Any) -> Any:
        seen.append(data[0].shape[0])
        return original(model, num_replicas, state, data)

    monkeypatch.setattr(_replica_steps, "train", spy)
    with strategy.scope():
        model = classifier()
    model.fit(X[:rows], Y[:rows], batch_size=rows, verbose=0)
    assert seen == ([] if options else [rows // REPLICAS]), what


class OwnStep(keras.Model):
    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, data)


@pytest.mark.parametrize("rows", [32, 27, 3])
def test_unsynchronised_statistics_are_the_same_in_both_kinds_of_step(strategy: Any, rows: int) -> None:
    """A model with a train_step of its own takes the step over the whole batch; another one that of a replica."""
    weights = []
    for kind in (keras.Model, OwnStep):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = classifier(keras.layers.Dense(5), keras.layers.BatchNormalization(), kind=kind)
        model.fit(X[:rows], Y[:rows], batch_size=rows, epochs=3, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for mine, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)


def test_each_replica_drops_out_other_units(strategy: Any) -> None:
    class Shown(keras.layers.Dropout):
        pass

    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), Shown(0.5, seed=1)])
    model.compile(loss="mse")
    steps = Steps(model, strategy.extended.engine.replicas, "predict")
    call = model.call
    model.call = lambda x, training=None, mask=None: call(x, training=True)
    state = model._get_jax_state(trainable_variables=True, non_trainable_variables=True)
    outputs, _ = steps(state, (np.ones((REPLICAS, 64), np.float32),))
    rows = {tuple(row) for row in np.asarray(outputs)}
    assert len(rows) == REPLICAS
    # Replica 0 draws what one device draws.
    alone = keras.layers.Dropout(0.5, seed=1)(np.ones((1, 64), np.float32), training=True)
    assert tuple(np.asarray(alone)[0]) in rows


def test_few_steps_are_in_flight(strategy: Any) -> None:
    with strategy.scope():
        model = classifier()
    model.fit(X, Y, batch_size=8, verbose=0)
    steps = Steps(model, strategy.extended.engine.replicas, "test")
    state = model._get_jax_state(trainable_variables=True, non_trainable_variables=True, metrics_variables=True)
    for start in range(0, 160, 8):
        _, state = steps(state, (X[start : start + 8], Y[start : start + 8]))
        assert len(steps._in_flight._waiting) <= 8


def recurrent() -> Any:
    inputs = keras.Input(batch_shape=(8, 4, 3))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(5, stateful=True)(inputs)))


def test_a_model_that_keeps_state_for_each_row_trains_as_on_one_device(strategy: Any) -> None:
    x, y = RNG.normal(size=(32, 4, 3)).astype("float32"), RNG.normal(size=(32, 1)).astype("float32")
    weights = []
    for scope in (contextlib.nullcontext(), strategy.scope()):
        keras.utils.set_random_seed(2)
        with scope:
            model = recurrent()
            model.compile("sgd", "mse")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for mine, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)
