# SPDX-License-Identifier: Apache-2.0
"""Runs one recorded case; imported by the tests and, in the replicas' processes, by the pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


def load_cases() -> dict[str, Any]:
    """Every recorded case, by name."""
    return json.loads((HERE / "cases.json").read_text())["cases"]


def load_arrays(name: str) -> dict[str, np.ndarray]:
    """A case's arrays."""
    with np.load(HERE / f"{name}.npz") as arrays:
        return dict(arrays)


def numbered(arrays: dict[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    """The arrays `prefix_00`, `prefix_01`, ..."""
    return [arrays[key] for key in sorted(arrays) if key.rpartition("_")[0] == prefix]


def run_case(name: str, replicas: int) -> dict[str, Any]:
    """The case under a MirroredStrategy over all devices, of which there are `replicas`, as this process sees it."""
    import keras

    import stratagem

    case, arrays = load_cases()[name], load_arrays(name)
    data = {key: arrays[spec["npz_key"]].astype(spec["feed_dtype"]) for key, spec in case["data"].items()}
    strategy = stratagem.MirroredStrategy()
    assert strategy.num_replicas_in_sync == replicas
    with strategy.scope():
        model = keras.models.model_from_json(json.dumps(case["model_config"]))
        model.set_weights(numbered(arrays, "w0"))
        options = dict(case["compile"])
        options["optimizer"] = keras.optimizers.deserialize(options["optimizer"])
        for kind in ("metrics", "weighted_metrics"):
            if kind in options:
                options[kind] = [
                    keras.metrics.deserialize(metric) if isinstance(metric, dict) else metric
                    for metric in options[kind]
                ]
        model.compile(**options)
    result = _train(model, case, data)
    result["weights"] = model.get_weights()
    return result


def _train(model: Any, case: dict[str, Any], data: dict[str, np.ndarray]) -> dict[str, Any]:
    fit = dict(case["fit"] or {})
    x, y = data["x"], data["y"]
    if "on_batch" in fit:
        return _on_batch(model, x, y, fit["on_batch"])
    result: dict[str, Any] = {}
    if fit:
        for key in ("sample_weight", "validation_data"):
            if isinstance(fit.get(key), str):
                fit[key] = data[fit[key]]
            elif key in fit:
                fit[key] = tuple(data[part] for part in fit[key])
        if "class_weight" in fit:
            fit["class_weight"] = {int(label): weight for label, weight in fit["class_weight"].items()}
        recorder = _recorder()
        history = model.fit(x, y, shuffle=False, verbose=0, callbacks=[recorder], **fit)
        result = {"history": history.history, "step_logs": recorder.logs, "first": recorder.first}
    batch_size = case["results"]["single"].get("evaluate_batch_size")
    if batch_size:
        weights = {"sample_weight": data["sw"]} if "sw" in data else {}
        result["evaluate"] = model.evaluate(x, y, batch_size=batch_size, verbose=0, return_dict=True, **weights)
    result["predict"] = model.predict(x, batch_size=batch_size or 16, verbose=0)
    return result


def _on_batch(model: Any, x: np.ndarray, y: np.ndarray, size: int) -> dict[str, Any]:
    starts = range(0, len(x), size)
    return {
        "train_on_batch": [model.train_on_batch(x[i : i + size], y[i : i + size]) for i in starts],
        "test_on_batch": model.test_on_batch(x[:size], y[:size]),
        "predict": model.predict_on_batch(x[:size]),
    }


def _recorder() -> Any:
    import keras

    class Recorder(keras.callbacks.Callback):
        """What a user's callback sees at every step."""

        def __init__(self) -> None:
            super().__init__()
            self.logs: list[dict[str, float]] = []
            self.first: list[np.ndarray] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.logs.append({name: float(value) for name, value in logs.items()})
            self.first = self.first or self.model.get_weights()

    return Recorder()
