# SPDX-License-Identifier: Apache-2.0
"""Every place where Stratagem steps into Keras on jax, in one table.

Each hook stands in for a function of Keras and gets that function as its first argument. None acts unless a model
that was made under a strategy is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
from keras.src.backend.common import KerasVariable
from keras.src.backend.jax import random as jax_random
from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer
from keras.src.losses import loss as loss_module
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers import data_adapters
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

from stratagem.engines import select
from stratagem.engines.jax import JaxEngine
from stratagem.engines.jax._tracing import in_replica_trace
from stratagem.engines.jax._variables import Access, use_access
from stratagem.errors import ContextError, JobMismatchError
from stratagem.keras_fit import _attachment, _callbacks, _divided, _draws, _resume, _synchronized, _variable
from stratagem.keras_fit._divided import DividedData
from stratagem.keras_fit._hook import Hook, Hooks
from stratagem.keras_fit._jax import _ahead_of_time, _batch_normalization, _losses, _masks, _optimizers, _saving, _seeds
from stratagem.keras_fit._jax._placement import ahead
from stratagem.keras_fit._jax._reading import batches_of
from stratagem.keras_fit._jax._resume import RANDOM, batches_after
from stratagem.keras_fit._jax._steps import Steps
from stratagem.keras_fit._rows import naming_empty_data

_CHIEF = 0

# One entry for each method of a model that is running, None for models of no strategy.
_running: list[JaxEngine | None] = []


def _engine_of(model: Any, method: str) -> JaxEngine | None:
    return None if _attachment.joined(model, method) is None else _engine()


def _engine() -> JaxEngine:
    engine = select.engine()
    assert isinstance(engine, JaxEngine), "these hooks are installed for it alone"
    return engine


def _method(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """`fit`, `evaluate`, `predict` and their `*_on_batch` versions."""
    if in_replica_trace():
        # It would leave traced values in the model's variables.
        raise ContextError(
            f"model.{original.__name__}() was called inside a function that strategy.run traces",
            fix="call it outside strategy.run(): it runs on all replicas by itself",
        )
    engine = _engine_of(model, original.__name__)
    outermost = not _running
    _running.append(engine)
    try:
        kwargs = _resume.listed(kwargs)
        with _resume.during(original.__name__, RANDOM):
            if engine is None or not outermost:
                return original(model, *args, **kwargs)
            with engine.naming_the_lost(f"model.{original.__name__}()"), naming_empty_data():
                run = original if engine.rank == _CHIEF else partial(_callbacks.run_quietly, original)
                with _callbacks.held_for_the_chief(model, kwargs) as kwargs:
                    return run(model, *args, **kwargs)
    finally:
        _running.pop()


def _make_function(kind: str) -> Callable[..., Any]:
    attribute = f"{kind}_function"

    def make(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
        if _attachment.strategy_of(model) is None:
            return original(model, force)
        if getattr(model, attribute) is None or force:
            steps = _ahead_of_time.instead_of_training(model, kind) or Steps(
                model, _engine().replicas, kind, partial(_agree, kind)
            )
            setattr(model, attribute, model._make_function(steps, concatenate_outputs=kind == "predict"))
        return getattr(model, attribute)

    return make


def _agree(kind: str, mine: dict[str, str]) -> None:
    engine = _engine()
    for rank, theirs in enumerate(engine.said_by_all(f"the first {kind} step of a model", mine)):
        for what, value in mine.items():
            if theirs[what] != value:
                raise JobMismatchError(
                    f"in the first {kind} step {what} of process {engine.rank} and of process {rank} differ: "
                    f"{value:.500} and {theirs[what]:.500}",
                    fix="make the same model, and give it the same data, in every process",
                )


def _get_iterator(original: Callable[..., Any], epoch_iterator: Any) -> Iterator[Any]:
    engine = _running[-1] if _running else None
    adapter = epoch_iterator.data_adapter

    def open_pass(count: int, begin: Callable[[], None]) -> Iterator[Any]:
        if engine is not None:
            return ahead(engine.replicas, batches_of(engine, adapter, count, begin))
        return batches_after(adapter, count, begin) if count else iter(original(epoch_iterator))

    return _resume.opened(open_pass, adapter)


def _get_data_adapter(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    divided = _divided.adapted(DividedData if _running and _running[-1] else None, x, *args, **kwargs)
    return original(x, *args, **kwargs) if divided is None else divided


def _save(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    if _attachment.strategy_of(model) is None:
        return original(model, filepath, *args, **kwargs)
    with _variable.read_together(model):
        return _saving.save(_engine(), filepath, lambda: original(model, filepath, *args, **kwargs))


def _state(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """What a step starts from, or left: the replicas' copies, not what they come to together."""
    with _variable.meaning_the_copy():
        return original(model, *args, **kwargs)


_COPIES = "a step's state is that of the replicas' copies"
_FIT = "the loop stays Keras's own; the strategy joins in around it"
_STEP = "the steps of a model under a strategy are ours"
_BY_ROW = "what is drawn for a row with a seed does not depend on the replica that has it"
_SUMMED = "gradients are summed before they are checked, clipped and applied"
_MASKS = "Keras's step on jax loses the mask of the predictions, and counts masked entries in metrics"

HOOKS = Hooks(
    (
        Hook(JAXTrainer, "__init__", _attachment.init_trainer, "every model passes here when it is made"),
        Hook(KerasVariable, "__init__", _variable.init_variable, "every variable passes here when it is made"),
        Hook(Trainer, "compile", _attachment.compile_model, "a model compiled under another strategy is refused here"),
        *(
            Hook(JAXTrainer, name, _method, _FIT)
            for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
        ),
        *(
            Hook(JAXTrainer, f"make_{kind}_function", _make_function(kind), _STEP)
            for kind in ("train", "test", "predict")
        ),
        *(Hook(JAXTrainer, name, _state, _COPIES) for name in ("_get_jax_state", "jax_state_sync")),
        Hook(data_adapters, "get_data_adapter", _get_data_adapter, "a data set divided among replicas"),
        Hook(JAXEpochIterator, "_get_iterator", _get_iterator, "rows go to the replica that computes on them"),
        Hook(
            EpochIterator,
            "_enumerate_iterator",
            _resume.enumerate_steps,
            "a run that was stopped goes on with the batch after the last one that was saved",
        ),
        *(Hook(keras.Model, name, _save, "one writer") for name in ("save", "save_weights", "export")),
        Hook(loss_module, "reduce_weighted_values", _losses.reduce_weighted_values, "losses weigh themselves"),
        Hook(
            Trainer,
            "_aggregate_additional_loss",
            _losses.aggregate_additional_loss,
            "regularisation counts once, not once per replica",
        ),
        Hook(JAXTrainer, "compute_loss_and_updates", _masks.compute_loss_and_updates, _MASKS),
        Hook(JAXTrainer, "_update_metrics_variables", _masks.update_metrics_variables, _MASKS),
        Hook(BaseOptimizer, "apply", _optimizers.apply, _SUMMED),
        Hook(keras.optimizers.LossScaleOptimizer, "apply", _optimizers.apply_scaled, _SUMMED),
        Hook(jax_random, "draw_seed", _seeds.draw_seed, "replicas draw different numbers"),
        *(
            Hook(jax_random, name, _draws.shaped(_seeds.rows_here), _BY_ROW)
            for name in ("uniform", "normal", "randint", "truncated_normal", "gamma", "beta", "binomial")
        ),
        Hook(jax_random, "dropout", _draws.dropout(_seeds.rows_here), _BY_ROW),
        Hook(keras.layers.BatchNormalization, "__init__", _synchronized.init, "synchronized=True on jax"),
        Hook(keras.layers.BatchNormalization, "call", _batch_normalization.call, "each replica's own statistics"),
    )
)


def install() -> None:
    """Put every hook in place. Idempotent."""
    HOOKS.install()
    use_access(Access(write=_write))


def _write(variable: Any, array: Any) -> None:
    # `assign` would look at shape and dtype again, for each of hundreds of variables at each call of a step.
    variable._value = array


def uninstall() -> None:
    """Give Keras its functions back; for tests."""
    HOOKS.uninstall()
