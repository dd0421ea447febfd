# SPDX-License-Identifier: Apache-2.0
"""Where a preempted job's checkpoints go: by a manager, or by an object's own `save` and `restore`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Protocol

from stratagem.errors import ArgumentError, ArgumentTypeError
from stratagem.keras_fit._backup_processes import Processes

__all__ = ["Store", "store_of"]

_KEEP = 2
_NAME = "preempted"


class Store(Protocol):
    """Saves and restores, with a count of steps."""

    def num_processes(self) -> int:
        """How many processes save together."""
        ...

    def any(self, mine: bool) -> bool:
        """Whether it is so for any of them."""
        ...

    def save(self, count: int, *args: Any, **kwargs: Any) -> None:
        """Save after `count` steps."""
        ...

    def restore(self) -> int:
        """Restore the last checkpoint; the steps that had been done, 0 where there is none."""
        ...


def store_of(one: Any, directory: str | os.PathLike[str] | None) -> Store:
    """The store for what a `PreemptionCheckpointHandler` is given.

    Raises:
        ArgumentError: the folder is missing, or given with a manager.
        ArgumentTypeError: `one` can't be saved and restored.
    """
    is_manager = hasattr(one, "restore_or_initialize")
    if is_manager == (directory is not None):
        said = f"a manager has its own folder, {one.directory!r}" if is_manager else "checkpoint_dir is missing"
        raise ArgumentError(
            f"PreemptionCheckpointHandler: {said}",
            fix="give a Checkpoint with checkpoint_dir=..., or a CheckpointManager without it",
        )
    if is_manager:
        return _Managed(one)
    if hasattr(one, "kept_in"):
        return _Managed(one.kept_in(directory, max_to_keep=_KEEP))
    if not (callable(getattr(one, "save", None)) and callable(getattr(one, "restore", None))):
        raise ArgumentTypeError(
            f"PreemptionCheckpointHandler can't save {one!r:.60}",
            fix="give a stratagem.Checkpoint, or an object that has save(path) and restore(path)",
        )
    assert directory is not None, "checked above"
    return _Own(one, Path(directory))


class _Managed:
    """By a manager, with the count among what it saves."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._count = {"runs": 0}
        manager.checkpoint.add("checkpointed_runs", self._count)

    def num_processes(self) -> int:
        return self._manager.checkpoint.processes().count

    def any(self, mine: bool) -> bool:
        return any(self._manager.checkpoint.processes().all(mine))

    def save(self, count: int, *args: Any, **kwargs: Any) -> None:
        self._count["runs"] = count
        self._manager.save(*args, **kwargs)

    def restore(self) -> int:
        self._manager.restore_or_initialize()
        return self._count["runs"]


class _Own:
    """By an object's own methods, with the count in the names of its files."""

    def __init__(self, one: Any, folder: Path) -> None:
        self._one = one
        self._folder = folder

    def num_processes(self) -> int:
        return Processes([self._one]).count

    def any(self, mine: bool) -> bool:
        return any(Processes([self._one]).all(mine))

    def save(self, count: int, *args: Any, **kwargs: Any) -> None:
        def write() -> None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._one.save(str(self._folder / f"{_NAME}-{count}"), *args, **kwargs)

        Processes([self._one]).on_chief(write)

    def restore(self) -> int:
        def last() -> int | None:
            names = [entry.name for entry in self._folder.iterdir()] if self._folder.is_dir() else []
            return max(
                (int(match[1]) for name in names if (match := re.fullmatch(rf"{_NAME}-(\d+)", name))), default=None
            )

        count = Processes([self._one]).on_chief(last)
        if count is None:
            return 0
        self._one.restore(str(self._folder / f"{_NAME}-{count}"))
        return count
