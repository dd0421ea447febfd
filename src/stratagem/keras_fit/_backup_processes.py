# SPDX-License-Identifier: Apache-2.0
"""The processes that save and restore together: the chief writes, all get what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from stratagem._core import contexts
from stratagem.checkpoint import Contents, Folder, load, read_file
from stratagem.engines import select
from stratagem.errors import StratagemError
from stratagem.keras_fit import _attachment

__all__ = ["Processes"]

T = TypeVar("T")

_PART_BYTES = 1 << 20
_CHIEF = 0


class Processes:
    """Those of the strategy that objects were made under; a program without one is alone.

    Args:
        objects: Keras models, or others.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        strategies = [_attachment.strategy_of(one) for one in objects if hasattr(one, "compile")]
        strategy = next((strategy for strategy in strategies if strategy is not None), None)
        context = contexts.current()
        if strategy is None and context is not None:
            strategy = context.strategy
        self._engine = None
        if strategy is not None:
            strategy.extended.connect()
            self._engine = select.engine()

    @property
    def count(self) -> int:
        """How many there are."""
        engine = self._engine
        return 1 if engine is None else engine.num_replicas // max(1, len(engine.local_replica_ids))

    @property
    def is_chief(self) -> bool:
        """Whether this one writes."""
        return self._engine is None or self._engine.rank == _CHIEF

    def all(self, mine: T) -> list[T]:
        """What each process says, by rank."""
        if self._engine is None or self.count == 1:
            return [mine]
        return list(self._engine.all_processes_objects(mine))

    def on_chief(self, do: Callable[[], T]) -> T:
        """What `do` returns on the chief, the only one that calls it; what it raises of ours is raised on all."""
        result: T | None = None
        error: StratagemError | None = None
        if self.is_chief:
            try:
                result = do()
            except StratagemError as caught:
                error = caught
        error, result = self.all((error, result))[_CHIEF]
        if error is not None:
            raise error
        return result  # pyright: ignore[reportReturnType] - it is the chief's

    def write(self, folder: Folder, number: int, contents: Callable[[], Contents]) -> None:
        """Let the chief write a checkpoint; it is complete when this returns on any process."""
        self.on_chief(lambda: folder.write(number, contents()) and None)

    def latest(self, folder: Folder) -> tuple[Path, Contents] | None:
        """The last checkpoint that the chief can use, with its file; every process gets the same."""
        if self.count == 1:
            found = folder.latest()
            return None if found is None else (folder.file(found[0]), found[2])
        data = b""

        def look() -> tuple[int, int] | None:
            nonlocal data
            found = folder.latest()
            if found is None:
                return None
            data = found[1]
            return found[0], len(data)

        said = self.on_chief(look)
        return None if said is None else (folder.file(said[0]), load(self._from_chief(data, said[1])))

    def read(self, path: Path) -> Contents:
        """One file, which the chief reads."""
        if self.count == 1:
            return read_file(path)
        data = b""

        def look() -> int:
            nonlocal data
            read_file(path)
            data = path.read_bytes()
            return len(data)

        size = self.on_chief(look)
        return load(self._from_chief(data, size))

    def _from_chief(self, data: bytes, size: int) -> bytes:
        # By parts: a message of a whole model would be larger than some services carry.
        return b"".join(self.all(data[start : start + _PART_BYTES])[_CHIEF] for start in range(0, size, _PART_BYTES))
