# SPDX-License-Identifier: Apache-2.0
"""Keras variables, put into the contents of a checkpoint and taken out again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from stratagem.checkpoint import CheckpointMismatchError, Contents, describe_difference

__all__ = ["Variables", "plain"]

Groups = Mapping[str, Sequence[Any]]


class Variables:
    """Keras variables in named groups, such as those of a model and those of its optimizer.

    A file knows each by its group, its place in it, its path and its shape.

    Args:
        groups: Built variables by the name of their group.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = {name: list(variables) for name, variables in groups.items()}

    def described(self) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
        """Path and shape of each."""
        return {
            group: [(variable.path, tuple(variable.shape)) for variable in variables]
            for group, variables in self._groups.items()
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Their values, by the names that they have in a file."""
        return {
            _name(group, place, variable.path): _to_numpy(variable.value)
            for group, variables in self._groups.items()
            for place, variable in enumerate(variables)
        }

    def restore(self, described: Mapping[str, Any], contents: Contents, where: str) -> None:
        """Give the variables the values of a file.

        Args:
            described: What `described()` said when it was written.
            contents: The file's.
            where: Names it in errors.

        Raises:
            CheckpointMismatchError: it has other variables; none was changed.
        """
        for group, variables in self.described().items():
            difference = describe_difference(described.get(group, []), variables)
            if difference is not None:
                raise CheckpointMismatchError(
                    f"the checkpoint {where} is of another program: of {group!r}, {difference}",
                    fix="build the same model as when it was written, or give a folder of its own to this one",
                )
        for group, variables in self._groups.items():
            for place, (variable, (path, _)) in enumerate(zip(variables, described[group], strict=True)):
                variable.assign(contents.arrays[_name(group, place, path)])


def _name(group: str, place: int, path: str) -> str:
    return f"{group}/{place:04d}/{path}"


def _to_numpy(value: Any) -> np.ndarray:
    with warnings.catch_warnings():
        # Keras copies torch's tensors in a way that numpy 2 complains about.
        warnings.simplefilter("ignore", DeprecationWarning)
        return np.asarray(keras.ops.convert_to_numpy(value))


def plain(value: Any) -> Any:
    """A number or a structure of numbers as JSON can say it."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return plain(_to_numpy(value).tolist())
