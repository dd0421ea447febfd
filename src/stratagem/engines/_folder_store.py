# SPDX-License-Identifier: Apache-2.0
"""The pulse's store for processes of one host: a small file for each value, in the job's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stratagem.engines._pulse import StoreGoneError

__all__ = ["FolderStore"]


class FolderStore:
    """Values in files, each of which appears whole.

    Args:
        folder: The job's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, value: bytes) -> None:
        """Leave a value."""
        path = self._path(key)
        unfinished = path.with_suffix(".new")
        try:
            unfinished.write_bytes(value)
            unfinished.rename(path)
        except FileNotFoundError as error:  # the launcher has removed the folder: the job is over
            raise StoreGoneError from error

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values that are there."""
        return [self._found(self._path(key)) for key in keys]

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")

    @staticmethod
    def _found(path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
