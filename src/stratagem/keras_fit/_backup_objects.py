# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of custom loops: `stratagem.Checkpoint` and `stratagem.CheckpointManager`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from stratagem.checkpoint import CheckpointMismatchError, Contents, Folder, write_file
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError
from stratagem.keras_fit._backup_processes import Processes
from stratagem.keras_fit._backup_state import Variables, plain

__all__ = ["Checkpoint", "CheckpointManager"]


class Checkpoint:
    """Saves Keras objects and numbers to one file, and restores them; the counterpart of `tf.train.Checkpoint`.

    Every process calls `save` and `restore`. The chief writes and reads, and a file that one number of replicas or
    one backend wrote is restored under any other.

    Args:
        objects: By names of your choice: models, layers, optimizers, metrics, variables, and dicts of numbers, lists
            and texts, which are restored in place. A compiled model brings its optimizer.

    Raises:
        ArgumentTypeError: an object is none of these.

    Example:
        >>> import keras, tempfile, stratagem as distribute
        >>> model, done = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), {"step": 3}
        >>> checkpoint = distribute.Checkpoint(model=model, done=done)
        >>> path = checkpoint.save(tempfile.mkdtemp() + "/three.npz")
        >>> done["step"] = 8
        >>> checkpoint.restore(path)
        >>> done
        {'step': 3}
    """

    def __init__(self, **objects: Any) -> None:
        self._objects: dict[str, Any] = {}
        for name, one in objects.items():
            self.add(name, one)

    def add(self, name: str, one: Any) -> None:
        """Save and restore one more object.

        Args:
            name: What it is called in files.
            one: As those given to the constructor.

        Raises:
            ArgumentTypeError: it is none of the kinds that can be saved.
        """
        if not isinstance(one, (dict, keras.Variable, keras.random.SeedGenerator)) and not hasattr(one, "variables"):
            raise ArgumentTypeError(
                f"Checkpoint({name}={one!r:.60}) is no model, layer, optimizer, metric, variable or dict",
                fix=f'hold a number in a dict: {name}={{"{name}": 0}}',
            )
        self._objects[name] = one

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write a file, whole or not at all; it is complete when this returns on any process.

        Args:
            path: The file.

        Returns:
            `path`.

        Raises:
            CheckpointError: it can't be written, for example because the disk is full.
        """
        contents = self.contents()
        self.processes().on_chief(lambda: write_file(Path(path), contents))
        return os.fspath(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Give the objects the values of a file.

        Args:
            path: What `save` returned.

        Raises:
            CheckpointError: it can't be read, is incomplete or altered.
            CheckpointMismatchError: it has other variables than the objects.
        """
        self.take(self.processes().read(Path(path)), os.fspath(path))

    def kept_in(self, directory: str | os.PathLike[str], max_to_keep: int) -> CheckpointManager:
        """A manager of this checkpoint's files in a folder."""
        return CheckpointManager(self, directory, max_to_keep)

    def processes(self) -> Processes:
        """Those that save together."""
        return Processes(self._objects.values())

    def contents(self) -> Contents:
        """The values of the objects now."""
        variables = Variables(self._groups())
        numbers = {name: plain(one) for name, one in self._objects.items() if isinstance(one, dict)}
        return Contents({"kind": "objects", "variables": variables.described(), "numbers": numbers}, variables.arrays())

    def take(self, contents: Contents, where: str) -> None:
        """Give the objects the values of `contents`; `where` names their file in errors."""
        if contents.state.get("kind") != "objects":
            raise CheckpointMismatchError(
                f"{where} was not written by Checkpoint",
                fix="BackupAndRestore's files are restored by BackupAndRestore",
            )
        Variables(self._groups()).restore(contents.state["variables"], contents, where)
        for name, numbers in contents.state["numbers"].items():
            held = self._objects.get(name)
            if isinstance(held, dict):
                held.clear()
                held.update(numbers)

    def _groups(self) -> Mapping[str, list[Any]]:
        models = [one for one in self._objects.values() if isinstance(one, keras.Model)]
        given = {id(one) for one in self._objects.values()}
        groups: dict[str, list[Any]] = {}
        for name, one in self._objects.items():
            if isinstance(one, dict):
                continue
            if isinstance(one, keras.Layer) and not one.built:
                raise ContextError(
                    f"{name!r} of a Checkpoint has no variables yet", fix="build it, or call it on a batch"
                )
            groups[name] = _variables(one, models)
            optimizer = getattr(one, "optimizer", None)
            if isinstance(one, keras.Model) and optimizer is not None and id(optimizer) not in given:
                groups[f"{name}.optimizer"] = _variables(optimizer, [one])
        return groups


def _variables(one: Any, models: list[Any]) -> list[Any]:
    if isinstance(one, keras.Variable):
        return [one]
    if isinstance(one, keras.random.SeedGenerator):
        return [one.state]
    if isinstance(one, keras.optimizers.Optimizer) and not one.built and len(models) == 1:
        # Its moments come with the first step, which a program that starts again has not made yet.
        one.build(models[0].trainable_variables)
    return list(one.variables)


class CheckpointManager:
    """Numbers the files of a `Checkpoint` and keeps the last ones; the counterpart of `tf.train.CheckpointManager`.

    Every process calls its methods.

    Args:
        checkpoint: What to save.
        directory: A folder, made when it is needed.
        max_to_keep: How many files are kept, 1 or more.
        checkpoint_name: What the files' names begin with.

    Raises:
        ArgumentError: `max_to_keep` is less than 1, or the name holds more than letters, digits, "_" and "-".

    Example:
        >>> import tempfile, stratagem as distribute
        >>> done = {"step": 0}
        >>> manager = distribute.CheckpointManager(distribute.Checkpoint(done=done), tempfile.mkdtemp(), max_to_keep=2)
        >>> for done["step"] in (1, 2, 3):
        ...     path = manager.save()
        >>> len(manager.checkpoints), manager.restore_or_initialize() == path
        (2, True)
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int,
        checkpoint_name: str = "ckpt",
    ) -> None:
        if max_to_keep < 1 or not re.fullmatch(r"[\w-]+", checkpoint_name):
            raise ArgumentError(
                f"CheckpointManager(max_to_keep={max_to_keep!r}, checkpoint_name={checkpoint_name!r}) can't be used",
                fix='max_to_keep=3, checkpoint_name="ckpt"',
            )
        self.checkpoint = checkpoint
        self._folder = Folder(Path(directory), checkpoint_name, max_to_keep)

    @property
    def directory(self) -> str:
        """The folder."""
        return str(self._folder.path)

    @property
    def checkpoints(self) -> list[str]:
        """The files that are there, oldest first."""
        return [str(self._folder.file(number)) for number in self._folder.numbers()]

    @property
    def latest_checkpoint(self) -> str | None:
        """The newest of them, or None."""
        return next(reversed(self.checkpoints), None)

    def save(self, checkpoint_number: int | None = None) -> str:
        """Write the next file and delete those that are too many.

        Args:
            checkpoint_number: Its number; without it one more than that of the newest. Those of
                greater numbers are deleted: the program began again from an older one.

        Returns:
            Its path.

        Raises:
            CheckpointError: it can't be written; those before are untouched.
        """
        contents, processes = self.checkpoint.contents(), self.checkpoint.processes()

        def write() -> str:
            number = checkpoint_number
            if number is None:
                number = next(reversed(self._folder.numbers()), 0) + 1
            return str(self._folder.write(number, contents))

        return processes.on_chief(write)

    def restore_or_initialize(self) -> str | None:
        """Restore the newest file that can be used; a warning names each newer one that can't.

        Returns:
            Its path, or None where there is none.

        Raises:
            CheckpointMismatchError: it has other variables than the objects.
        """
        found = self.checkpoint.processes().latest(self._folder)
        if found is None:
            return None
        path, contents = found
        self.checkpoint.take(contents, str(path))
        return str(path)
