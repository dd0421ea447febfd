# SPDX-License-Identifier: Apache-2.0
"""Top-level names of `tf.distribute` that are not built yet."""

from __future__ import annotations

from typing import Any

from stratagem._core.unbuilt import Unbuilt, raise_not_built

__all__ = [
    "ParameterServerStrategy",
    "Server",
]


class ParameterServerStrategy(Unbuilt, name="ParameterServerStrategy"):
    """Trains asynchronously, with variables on parameter servers. Not built yet."""


class Server(Unbuilt, name="Server"):
    """One task of a parameter server cluster. Not built yet."""

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Any:
        """Not built yet."""
        raise_not_built("Server")
