# SPDX-License-Identifier: Apache-2.0
"""What strategies with one replica on each of some devices have in common."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import keras_fit
from stratagem.engines.base import Engine
from stratagem.strategies._extended import StrategyExtended
from stratagem.strategies._strategy import Strategy

__all__ = ["OnDevicesExtended"]


class OnDevicesExtended(StrategyExtended):
    """`extended` of a strategy that knows its devices when it is made.

    Args:
        container_strategy: The strategy that this belongs to.
        engine: What drives the replicas.
        devices: Theirs, by short names.
    """

    wraps_single_values = True

    def __init__(self, container_strategy: Strategy, engine: Engine, devices: Sequence[str]) -> None:
        super().__init__(container_strategy)
        self._engine = engine
        self._devices = tuple(devices)
        if len(self._devices) > 1:
            # Not only at the first scope: a model that is made without one is to be told of it.
            keras_fit.install()

    @property
    def engine(self) -> Engine:
        """The engine that drives the replicas."""
        return self._engine

    @property
    def devices(self) -> tuple[str, ...]:
        """The replicas' devices."""
        return self._devices
