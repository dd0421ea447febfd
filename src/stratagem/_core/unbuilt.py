# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute` that are not built yet: importable, with an error when they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, Self

from stratagem.errors import NotBuiltError

__all__ = ["NAMES", "Plan", "Unbuilt", "raise_not_built"]


@dataclass(frozen=True)
class Plan:
    """When a name comes, and what to use until then."""

    release: str
    instead: str


_LOOPS = "0.4 (custom loops, variables and data distribution)"
_SERVERS = "0.5 (parameter servers)"

_SERVER = Plan(_SERVERS, "MirroredStrategy trains synchronously, without parameter servers")

# Without the leading "tf.distribute.". Each coming release takes its rows out; a test keeps table and names equal.
NAMES: dict[str, Plan] = {
    "ParameterServerStrategy": _SERVER,
    "Server": _SERVER,
    "coordinator.ClusterCoordinator": _SERVER,
    "coordinator.PerWorkerValue": _SERVER,
    "coordinator.RemoteValue": _SERVER,
    "coordinator.experimental_get_current_worker_index": _SERVER,
    "experimental.CentralStorageStrategy": Plan(_LOOPS, "MirroredStrategy keeps a copy of the variables per device"),
    "experimental.ParameterServerStrategy": _SERVER,
    "experimental.coordinator.ClusterCoordinator": _SERVER,
    "experimental.coordinator.PerWorkerValues": _SERVER,
    "experimental.coordinator.RemoteValue": _SERVER,
    "experimental.partitioners.FixedShardsPartitioner": _SERVER,
    "experimental.partitioners.MaxSizePartitioner": _SERVER,
    "experimental.partitioners.MinSizePartitioner": _SERVER,
    "experimental.partitioners.Partitioner": _SERVER,
    "experimental.rpc.Client": _SERVER,
    "experimental.rpc.Server": _SERVER,
}


def raise_not_built(name: str) -> NoReturn:
    """Raise the error for a row of `NAMES`."""
    plan = NAMES[name]
    raise NotBuiltError(
        f"tf.distribute.{name} is not built yet; it is planned for release {plan.release}", fix=f"today: {plan.instead}"
    )


class Unbuilt:
    """The base of classes that are not built yet: making an instance raises `NotBuiltError`."""

    _name: str

    def __init_subclass__(cls, *, name: str) -> None:
        super().__init_subclass__()
        assert name in NAMES, name
        cls._name = name

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        raise_not_built(cls._name)
