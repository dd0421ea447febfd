# SPDX-License-Identifier: Apache-2.0
"""The pulse's store for processes of several hosts: torch's own, which the first of them keeps."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch.distributed as dist

from stratagem.engines._pulse import StoreGoneError


class TcpStore:
    """Values in the store that the processes met at, on a connection of the pulse's own.

    Args:
        store: The rendezvous store.
        timeout_seconds: After so long without an answer the store counts as gone.
    """

    def __init__(self, store: dist.TCPStore, timeout_seconds: float) -> None:
        self._store: dist.TCPStore = store.clone()  # pyright: ignore[reportAttributeAccessIssue] - not in its stubs
        self._store.set_timeout(datetime.timedelta(seconds=timeout_seconds))
        self._there: set[str] = set()

    def put(self, key: str, value: bytes) -> None:
        """Leave a value."""
        try:
            self._store.set(key, value)  # pyright: ignore[reportArgumentType] - it takes bytes as well
        except (RuntimeError, dist.DistError) as error:
            raise StoreGoneError from error

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values that are there."""
        try:
            # To ask for one that is not there would wait for it.
            self._there.update(key for key in keys if key not in self._there and self._store.check([key]))
            there = [key for key in keys if key in self._there]
            found = dict(zip(there, self._store.multi_get(there), strict=True))
        except (RuntimeError, dist.DistError) as error:
            raise StoreGoneError from error
        return [found.get(key) for key in keys]
