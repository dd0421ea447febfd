# SPDX-License-Identifier: Apache-2.0
"""Callbacks on replicas that are not the chief: they decide as the chief's do, and write nothing."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from keras import callbacks as keras_callbacks

from stratagem.keras_fit._variable import hold, let_go, read_on_demand

# They write and decide nothing that training depends on.
_WRITERS = (
    keras_callbacks.ModelCheckpoint,
    keras_callbacks.CSVLogger,
    keras_callbacks.TensorBoard,
    keras_callbacks.RemoteMonitor,
    keras_callbacks.ProgbarLogger,
)


class _Reader(keras_callbacks.Callback):
    """BackupAndRestore that restores but leaves saving and deleting to the chief."""

    def __init__(self, inner: keras_callbacks.BackupAndRestore) -> None:
        super().__init__()
        self._inner = inner

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._inner.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._inner.on_train_begin(logs)


class _Holder(keras_callbacks.Callback):
    """Reads on all processes what is brought together when it is read, before the chief's callbacks save it alone."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        hold(read_on_demand(self.model))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        hold(read_on_demand(self.model))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        let_go(read_on_demand(self.model))

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        let_go(read_on_demand(self.model))


@contextlib.contextmanager
def held_for_the_chief(model: Any, kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Around a method of a model on several processes: its keyword arguments, with a callback more if one is needed."""
    given = kwargs.get("callbacks")
    listed = given if isinstance(given, list) else []
    saves = any(isinstance(one, (*_WRITERS, keras_callbacks.BackupAndRestore)) for one in listed)
    # What a model holds that is not built yet, nobody knows.
    if not saves or (model.built and not read_on_demand(model)):
        yield kwargs
        return
    try:
        yield {**kwargs, "callbacks": [_Holder(), *listed]}
    finally:
        let_go(read_on_demand(model))


def run_quietly(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a model off the chief: without a progress bar, and without what callbacks would write."""
    signature = inspect.signature(original)
    if "callbacks" not in signature.parameters:
        return original(model, *args, **kwargs)
    bound = signature.bind(model, *args, **kwargs)
    bound.arguments["verbose"] = 0
    bound.arguments["callbacks"] = without_side_effects(bound.arguments.get("callbacks"))
    return original(*bound.args, **bound.kwargs)


def without_side_effects(callbacks: Any) -> Any:
    """What a replica that is not the chief runs of the callbacks given to `fit`, `evaluate` or `predict`."""
    if callbacks is None:
        return None
    if isinstance(callbacks, keras_callbacks.CallbackList):
        callbacks.callbacks = [_quiet(callback) for callback in callbacks.callbacks if not _writes(callback)]
        return callbacks
    if not isinstance(callbacks, (list, tuple)):
        callbacks = [callbacks]
    return [_quiet(callback) for callback in callbacks if not _writes(callback)]


def _writes(callback: Any) -> bool:
    return isinstance(callback, _WRITERS)


def _quiet(callback: Any) -> Any:
    if isinstance(callback, keras_callbacks.BackupAndRestore):
        return _Reader(callback)
    if type(callback).__module__.startswith("keras.src.") and getattr(callback, "verbose", 0):
        callback.verbose = 0
    return callback
