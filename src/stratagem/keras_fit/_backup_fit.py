# SPDX-License-Identifier: Apache-2.0
"""All that a `fit` depends on at one moment, put into the contents of a checkpoint and taken out again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from stratagem.checkpoint import CheckpointMismatchError, Contents
from stratagem.keras_fit._backup_processes import Processes
from stratagem.keras_fit._backup_state import Variables, plain
from stratagem.keras_fit._resume import Position, Progress

__all__ = ["Moment", "contents_of", "history_of", "put_history", "restore", "restore_metrics"]

_LOG = logging.getLogger("stratagem")


@dataclass(frozen=True)
class Moment:
    """When it was saved.

    Attributes:
        epoch: The one to go on with, counted from 0.
        step: Batches of it that have been trained on.
        steps: Batches in all.
        history: That of the epochs before, as `history_of` gives it.
    """

    epoch: int
    step: int
    steps: int
    history: Mapping[str, Any]


def contents_of(model: Any, progress: Progress, processes: Processes, moment: Moment) -> Contents:
    """What to write; a collective."""
    position = progress.position(moment.step)
    metrics = {"metrics": model.metrics_variables} if moment.step else {}
    variables = Variables(_groups(model) | metrics)
    said = processes.all(progress.framework.take_replica_states(model))
    replicas = [states for of_process in said for states in of_process]
    arrays = variables.arrays()
    random = {"random/opened": position.opened, "random/begun": position.begun, "random/now": position.now}
    random |= {f"replica/{replica}": states for replica, states in enumerate(replicas)}
    for prefix, states in random.items():
        arrays |= {f"{prefix}/{kind}": array for kind, array in (states or {}).items()}
    state = {
        "kind": "fit",
        "backend": keras.backend.backend(),
        "epoch": moment.epoch,
        "step": moment.step,
        "steps": moment.steps,
        "delivered": position.delivered,
        "passes_before": [int(was_read) for was_read in position.passes_before],
        "num_replicas": len(replicas),
        "history": moment.history,
        "variables": variables.described(),
    }
    return Contents(state, arrays)


def restore(model: Any, progress: Progress, path: Path, contents: Contents) -> int:
    """Go on with `contents` of the file `path`, but for its metrics and its history; the steps that had been done.

    Raises:
        CheckpointMismatchError: it is of another model, or no backup of a `fit`.
    """
    state = contents.state
    if state.get("kind") != "fit":
        raise CheckpointMismatchError(f"{path} was not written by BackupAndRestore", fix="give it a folder of its own")
    Variables(_groups(model)).restore(state["variables"], contents, str(path))
    position = Position(
        step=state["step"],
        delivered=state["delivered"],
        passes_before=[bool(was_read) for was_read in state["passes_before"]],
        opened=_part(contents, "random/opened/") or None,
        begun=_part(contents, "random/begun/") or None,
        now=_part(contents, "random/now/"),
    )
    progress.track(position)
    if position.step and state["backend"] != keras.backend.backend():
        _LOG.warning(
            "%s was written with the backend %s in the middle of epoch %d: if that epoch is shuffled, what is left "
            "of it comes in another order",
            path,
            state["backend"],
            state["epoch"],
        )
    states = [_part(contents, f"replica/{replica}/") for replica in range(state["num_replicas"])]
    progress.framework.put_replica_states(model, states)
    # Keras's loop begins there, as for its own callback.
    model._initial_epoch = state["epoch"]
    _LOG.info("going on from %s: epoch %d, step %d", path, state["epoch"], state["step"])
    return state["steps"]


def restore_metrics(model: Any, path: Path, contents: Contents) -> None:
    """Go on with the metrics in the middle of an epoch, once Keras has reset them for it.

    Raises:
        CheckpointMismatchError: the model has other metrics.
    """
    Variables({"metrics": model.metrics_variables}).restore(contents.state["variables"], contents, str(path))


def history_of(model: Any, epoch: int, logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The history up to now; `logs` are those of `epoch` if it has just ended."""
    history = model.history
    values = {name: list(past) for name, past in history.history.items()}
    epochs = list(history.epoch)
    if logs is not None and (not epochs or epochs[-1] != epoch):
        # Keras's own callback, which comes last, has not entered them yet.
        epochs.append(epoch)
        for name, value in logs.items():
            values.setdefault(name, []).append(value)
    return {"epochs": plain(epochs), "values": plain(values)}


def put_history(model: Any, contents: Contents) -> None:
    """Go on with the history."""
    saved = contents.state["history"]
    model.history.epoch = list(saved["epochs"])
    model.history.history = {name: list(values) for name, values in saved["values"].items()}


def _groups(model: Any) -> dict[str, list[Any]]:
    optimizer = getattr(model, "optimizer", None)
    return {"model": model.variables, "optimizer": optimizer.variables if optimizer is not None else []}


def _part(contents: Contents, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in contents.arrays.items() if name.startswith(prefix)}
