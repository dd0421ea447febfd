# SPDX-License-Identifier: Apache-2.0
"""The pulse's store in jax's coordination service, which the first process of a job runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem.engines._pulse import StoreGoneError

__all__ = ["KeyValueStore"]

_FOLDER = "stratagem/"


class KeyValueStore:
    """Values in the coordination service.

    Args:
        client: Of the service.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, value: bytes) -> None:
        """Leave a value."""
        try:
            self._client.key_value_set_bytes(_FOLDER + key, value, allow_overwrite=True)
        except jax.errors.JaxRuntimeError as error:
            raise StoreGoneError from error

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values that are there, by one question for each folder of the keys."""
        found: dict[str, bytes] = {}
        try:
            for folder in {key.rpartition("/")[0] for key in keys}:
                found.update(self._client.key_value_dir_get_bytes(f"{_FOLDER}{folder}/"))
        except jax.errors.JaxRuntimeError as error:
            raise StoreGoneError from error
        return [found.get(_FOLDER + key) for key in keys]
