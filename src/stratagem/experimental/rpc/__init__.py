# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute.experimental.rpc`."""

from __future__ import annotations

from typing import Any

from stratagem._core.unbuilt import Unbuilt, raise_not_built

__all__ = ["Client", "Server"]


class Client(Unbuilt, name="experimental.rpc.Client"):
    """Calls functions that a `Server` offers. Not built yet."""

    @staticmethod
    def create(rpc_layer: str, address: str, name: str = "", timeout_in_ms: int = 0) -> Any:
        """Not built yet."""
        raise_not_built("experimental.rpc.Client")


class Server(Unbuilt, name="experimental.rpc.Server"):
    """Offers functions to `Client`s. Not built yet."""

    @staticmethod
    def create(rpc_layer: str, address: str) -> Any:
        """Not built yet."""
        raise_not_built("experimental.rpc.Server")
