# SPDX-License-Identifier: Apache-2.0
"""Every place where Stratagem steps into Keras, in one table.

Each hook stands in for a function of Keras and gets that function as its first argument. None acts unless a model
that was made under a strategy is running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.common import KerasVariable
from keras.src.backend.torch import nn as torch_nn
from keras.src.backend.torch import random as torch_random
from keras.src.backend.torch.optimizers.torch_adam import Adam as TorchAdam
from keras.src.backend.torch.trainer import TorchEpochIterator, TorchTrainer
from keras.src.losses import loss as loss_module
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers import data_adapters
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

from stratagem._core import env
from stratagem.engines.torch._random_state import share_random_state
from stratagem.keras_fit import _attachment, _callbacks, _divided, _draws, _resume, _synchronized, _variable
from stratagem.keras_fit._hook import Hook, Hooks
from stratagem.keras_fit._rows import naming_empty_data
from stratagem.keras_fit._torch import (
    _adam,
    _batch_normalization,
    _convolutions,
    _losses,
    _metrics,
    _optimizers,
    _run_metrics,
    _saving,
    _seeds,
)
from stratagem.keras_fit._torch._resume import RANDOM, get_iterator
from stratagem.keras_fit._torch._runner import Runner, runner_of

_running: list[Runner] = []


def _runner(model: Any, method: str) -> Runner | None:
    return None if _attachment.joined(model, method) is None else runner_of(model)


def _loop(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """`fit`, `evaluate` and `predict`."""
    runner = _runner(model, original.__name__)
    kwargs = _resume.listed(kwargs)
    with _resume.during(original.__name__, RANDOM):
        if runner is None:
            return original(model, *args, **kwargs)
        return _loop_on_replicas(original, runner, model, *args, **kwargs)


def _loop_on_replicas(original: Callable[..., Any], runner: Runner, model: Any, *args: Any, **kwargs: Any) -> Any:
    with runner.method() as outermost, naming_empty_data():
        _running.append(runner)
        try:
            with _callbacks.held_for_the_chief(model, kwargs) as kwargs:
                if outermost and not runner.is_chief:
                    result = _callbacks.run_quietly(original, model, *args, **kwargs)
                else:
                    result = original(model, *args, **kwargs)
        finally:
            _running.pop()
        if outermost and runner.transport.world_size > 1:
            # What the chief's callbacks wrote is complete when any replica returns, and what the chief drew while it
            # read data is drawn everywhere.
            share_random_state(runner.transport)
    return result


def _on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """`train_on_batch`, `test_on_batch` and `predict_on_batch`."""
    runner = _runner(model, original.__name__)
    if runner is None:
        return original(model, *args, **kwargs)
    with runner.method():
        return original(model, *args, **kwargs)


def _make_function(kind: str) -> Callable[..., Any]:
    def make(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
        strategy = _attachment.strategy_of(model)
        if strategy is None:
            return original(model, force)
        runner = runner_of(model)
        runner.prepare()
        setattr(model, f"{kind}_function", getattr(runner, kind))
        return getattr(model, f"{kind}_function")

    return make


def _get_data_adapter(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    runner = _running[-1] if _running else None
    divided = _divided.adapted(None if runner is None else runner.divided, x, *args, **kwargs)
    if divided is not None:
        return divided
    adapter = original(x, *args, **kwargs)
    return adapter if runner is None else runner.adapt(adapter)


def _save(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    if _attachment.strategy_of(model) is None:
        return original(model, filepath, *args, **kwargs)
    with _variable.read_together(model):
        return _saving.save(
            runner_of(model).transport,
            filepath,
            lambda: original(model, filepath, *args, **kwargs),
            env.collective_timeout_seconds(),
        )


_FIT = "the loop stays Keras's own; the strategy joins in around it"
_STEP = "the steps of a model under a strategy are ours"
_RESUMED = "a run that was stopped goes on with the batch after the last one that was saved"
_BY_ROW = "what is drawn for a row with a seed does not depend on the replica that has it"
_SUMMED = "gradients are summed before they are checked, clipped and applied"

HOOKS = Hooks(
    (
        Hook(TorchTrainer, "__init__", _attachment.init_trainer, "every model passes here when it is made"),
        Hook(KerasVariable, "__init__", _variable.init_variable, "every variable passes here when it is made"),
        Hook(Trainer, "compile", _attachment.compile_model, "a model compiled under another strategy is refused here"),
        Hook(TorchTrainer, "fit", _loop, _FIT),
        Hook(TorchTrainer, "evaluate", _loop, _FIT),
        Hook(TorchTrainer, "predict", _loop, _FIT),
        Hook(TorchTrainer, "train_on_batch", _on_batch, _FIT),
        Hook(TorchTrainer, "test_on_batch", _on_batch, _FIT),
        Hook(TorchTrainer, "predict_on_batch", _on_batch, _FIT),
        Hook(TorchTrainer, "make_train_function", _make_function("train"), _STEP),
        Hook(TorchTrainer, "make_test_function", _make_function("test"), _STEP),
        Hook(TorchTrainer, "make_predict_function", _make_function("predict"), _STEP),
        Hook(
            data_adapters, "get_data_adapter", _get_data_adapter, "the one place where all inputs of all methods pass"
        ),
        Hook(TorchEpochIterator, "_get_iterator", get_iterator, _RESUMED),
        Hook(EpochIterator, "_enumerate_iterator", _resume.enumerate_steps, _RESUMED),
        Hook(keras.Model, "save", _save, "one writer"),
        Hook(keras.Model, "save_weights", _save, "one writer"),
        Hook(keras.Model, "export", _save, "one writer"),
        Hook(keras.losses.Loss, "__call__", _losses.call_loss, "losses of a whole batch need the rows of all replicas"),
        Hook(loss_module, "reduce_weighted_values", _losses.reduce_weighted_values, "losses weigh themselves"),
        Hook(
            Trainer,
            "_aggregate_additional_loss",
            _losses.aggregate_additional_loss,
            "regularisation counts once, not once per replica",
        ),
        Hook(keras.metrics.Mean, "update_state", _metrics.row_mean_update, "means of means count by rows"),
        Hook(keras.metrics.Metric, "__init__", _run_metrics.init_metric, "every metric passes here when it is made"),
        Hook(BaseOptimizer, "apply", _optimizers.apply, _SUMMED),
        Hook(keras.optimizers.LossScaleOptimizer, "apply", _optimizers.apply, _SUMMED),
        Hook(torch_random, "draw_seed", _seeds.draw_seed, "replicas draw different numbers"),
        *(
            Hook(torch_random, name, _draws.shaped(_seeds.rows_here), _BY_ROW)
            for name in ("uniform", "normal", "randint", "truncated_normal", "gamma", "beta", "binomial")
        ),
        Hook(torch_random, "dropout", _draws.dropout(_seeds.rows_here), _BY_ROW),
        Hook(keras.layers.BatchNormalization, "__init__", _synchronized.init, "synchronized=True on torch"),
        Hook(keras.layers.BatchNormalization, "call", _batch_normalization.call, "synchronised, and one kernel"),
        Hook(TorchAdam, "_parallel_update_step", _adam.parallel_update_step, "one kernel"),
        Hook(torch_nn, "_transpose_spatial_inputs", _convolutions.transpose_spatial_inputs, "no copy of the input"),
    )
)


def install() -> None:
    """Put every hook in place. Idempotent."""
    HOOKS.install()


def uninstall() -> None:
    """Give Keras its functions back; for tests."""
    HOOKS.uninstall()
