# SPDX-License-Identifier: Apache-2.0
"""A folder of checkpoints, of which the last few are kept."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path

from stratagem.checkpoint._container import Contents
from stratagem.checkpoint._file import PARTIAL, load, write_file
from stratagem.errors import CheckpointError

__all__ = ["Folder"]

_LOG = logging.getLogger("stratagem")
_SUFFIX = ".npz"


class Folder:
    """The checkpoints of one program, numbered by their steps.

    Other files may lie in the folder; they are left alone.

    Args:
        path: Made when the first one is written.
        name: What the files' names begin with.
        keep: How many there are at most, 1 or more.
    """

    def __init__(self, path: Path, name: str, keep: int) -> None:
        self.path = path
        self._name = name
        self._keep = keep
        self._pattern = re.compile(rf"{re.escape(name)}-(\d+){re.escape(_SUFFIX)}")
        self._partial = re.compile(rf"\.{re.escape(name)}-\d+{re.escape(_SUFFIX)}\.\d+{re.escape(PARTIAL)}")

    def file(self, number: int) -> Path:
        """Where the checkpoint `number` is, or would be."""
        return self.path / f"{self._name}-{number:012d}{_SUFFIX}"

    def numbers(self) -> list[int]:
        """Those that are there, in order."""
        matches = [self._pattern.fullmatch(name) for name in self._names()]
        return sorted(int(match[1]) for match in matches if match is not None)

    def write(self, number: int, contents: Contents) -> Path:
        """Write the checkpoint `number`, then delete those that are too many.

        Raises:
            CheckpointError: it can't be written; those before are untouched.
        """
        path = self.file(number)
        write_file(path, contents)
        # Later ones are of a future that this program does not have: it began anew from an older one.
        numbers = self.numbers()
        later = [other for other in numbers if other > number]
        earlier = [other for other in numbers if other < number]
        for other in [*later, *earlier[: max(0, len(earlier) - self._keep + 1)]]:
            _delete(self.file(other))
        self._sweep()
        return path

    def latest(self) -> tuple[int, bytes, Contents] | None:
        """The last one that can be used: its number, its bytes and its contents; a warning names each that can't."""
        numbers = self.numbers()
        for place in reversed(range(len(numbers))):
            path = self.file(numbers[place])
            try:
                data = path.read_bytes()
                return numbers[place], data, load(data)
            except OSError as error:
                why = error.problem if isinstance(error, CheckpointError) else error.strerror or str(error)
                instead = f"trying {self.file(numbers[place - 1]).name}" if place else "starting at the beginning"
                _LOG.warning("the checkpoint %s can't be used: %s; %s", path, why, instead)
        return None

    def delete(self) -> None:
        """Delete the checkpoints, and the folder if nothing else is in it."""
        for number in self.numbers():
            _delete(self.file(number))
        self._sweep()
        with contextlib.suppress(OSError):  # something else lies in it, or it never was
            self.path.rmdir()

    def _sweep(self) -> None:
        """Delete what a program that was killed while it wrote has left."""
        for name in self._names():
            if self._partial.fullmatch(name):
                _delete(self.path / name)

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in self.path.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"the folder of checkpoints {self.path} can't be read: {error.strerror or error}",
                fix="give a folder that this program may read and write",
            ) from error


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _LOG.warning("the old checkpoint %s can't be deleted: %s", path, error.strerror or error)
