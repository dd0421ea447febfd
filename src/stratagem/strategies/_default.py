# SPDX-License-Identifier: Apache-2.0
"""The strategy that is current where no other is: one replica, nothing distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from stratagem._core.enums import Reduction
from stratagem._core.input_options import InputContext, InputOptions
from stratagem.engines import select
from stratagem.engines.base import Engine, Tensor
from stratagem.errors import ContextError
from stratagem.strategies import _collectives
from stratagem.strategies._extended import StrategyExtended
from stratagem.strategies._replica_context import ReplicaContext
from stratagem.strategies._strategy import Strategy

__all__ = ["DEFAULT", "DefaultStrategy"]


class _Alone:
    """Collectives of one replica, whatever job the engine may have joined for another strategy."""

    num_replicas = 1
    local_replica_ids = (0,)

    def to_tensor(self, value: object) -> Tensor:
        return select.engine().to_tensor(value)

    def all_reduce(self, op: Reduction, values: Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]:
        del op
        return values

    def all_gather(self, values: Sequence[Sequence[Tensor]], axis: int) -> Sequence[Sequence[Tensor]]:
        del axis
        return values


class DefaultExtended(StrategyExtended):
    """`extended` of the default strategy."""

    def __init__(self, container_strategy: Strategy) -> None:
        super().__init__(container_strategy)
        self.default_replica_context = ReplicaContext(container_strategy, 0)

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        return select.engine()

    @property
    def collectives(self) -> _collectives.Collectives:
        """Collectives that send nothing."""
        return _Alone()

    @property
    def num_replicas(self) -> int:
        """One."""
        return 1

    @property
    def devices(self) -> NoReturn:
        """The default strategy chooses no devices, so asking for them is an error, as in `tf.distribute`."""
        raise ContextError(
            "the default strategy does not know its devices", fix="make a strategy, such as MirroredStrategy()"
        )

    def connect(self) -> None:
        """Nothing to join."""

    def enter_scope(self) -> None:
        """Nothing changes."""

    def leave_scope(self) -> None:
        """Nothing changed."""

    def call_on_replicas(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call `fn`: the default context is a replica's already."""
        return fn(*args, **kwargs)

    def values_from_function(self, make: Callable[[int], Any]) -> Any:
        """The value for the only replica."""
        return make(0)

    def distribute_dataset(self, dataset: Any, options: InputOptions | None = None) -> Any:
        """The data set itself."""
        del options
        return dataset

    def distribute_from_function(self, make: Callable[[InputContext], Any], options: InputOptions | None = None) -> Any:
        """The data set that `make` returns."""
        del options
        return make(InputContext())


class DefaultStrategy(Strategy):
    """What `get_strategy()` returns outside every scope: one replica on whatever device the framework uses.

    >>> DefaultStrategy().run(lambda x: x + 1, args=(1,))
    2
    """

    def __init__(self) -> None:
        super().__init__(DefaultExtended(self))

    def __repr__(self) -> str:
        return "DefaultStrategy(replicas=1)"


DEFAULT = DefaultStrategy()
