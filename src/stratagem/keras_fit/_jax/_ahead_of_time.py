# SPDX-License-Identifier: Apache-2.0
"""A model's training step, compiled for devices that need not be there: `compile_for` and `stratagem compile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import jax

from stratagem._core import env
from stratagem._core.tpu_slice import Slice
from stratagem.engines.compiled_step import CompiledStep, refusal_to_json
from stratagem.engines.jax._ahead_of_time import compile_step
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError, StratagemError
from stratagem.keras_fit import _attachment
from stratagem.keras_fit._jax._steps import lower_train_step
from stratagem.keras_fit._rows import num_rows


def compile_for(topology: str, model: Any, batch: Any) -> CompiledStep:
    """Compile the training step of `model`, for a TPU slice and global batches like `batch`."""
    if not isinstance(batch, list | tuple) or len(batch) > 3 or not jax.tree.leaves(batch):
        raise ArgumentTypeError(
            f"compile_for was given a {type(batch).__name__} for a batch", fix="(x, y), or (x, y, sample_weight)"
        )
    _attachment.check(model, "compile_for")
    if not model.compiled:
        raise ContextError(
            f"model {model.name!r} is not compiled, so it has no training step", fix="call model.compile(...) first"
        )
    model._symbolic_build(data_batch=tuple(batch))
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    return _compiled(topology, model, state, tuple(batch))


def instead_of_training(model: Any, kind: str) -> Callable[[Any, Any], NoReturn] | None:
    """What stands in for the steps of a program that `stratagem compile` has started; None in all others."""
    request = env.compile_request()
    return None if request is None or kind != "train" else partial(_compile_and_end, model, request)


def _compile_and_end(model: Any, request: env.CompileRequest, state: Any, data: Any) -> NoReturn:
    """A training step that compiles itself, writes down what came of it, and ends the program."""
    try:
        report = _compiled(request.topology, model, state, data).to_json()
    except StratagemError as error:
        # The command says it in a sentence; here a traceback through Keras would stand above it.
        report = refusal_to_json(error)
    request.report.write_text(report)
    raise SystemExit(0)


def _compiled(topology: str, model: Any, state: Any, data: Any) -> CompiledStep:
    if model.run_eagerly or not model.jit_compile:
        raise ArgumentError(
            f"model {model.name!r} runs without being compiled: run_eagerly={model.run_eagerly}, "
            f"jit_compile={model.jit_compile}",
            fix="leave run_eagerly and jit_compile out of model.compile(...)",
        )
    rows, replicas = num_rows(data), Slice.parse(topology).num_devices
    if rows % replicas:
        lower, higher = rows // replicas * replicas, -(-rows // replicas) * replicas
        raise ArgumentError(
            f"a global batch of {rows} rows can't be divided evenly among the {replicas} replicas of {topology}",
            fix=f"use batches of {higher} rows" + (f", or of {lower}" if lower else ""),
        )
    return compile_step(topology, rows, lambda on: lower_train_step(model, on, state, data))
