# SPDX-License-Identifier: Apache-2.0
"""Values that differ between replicas, as cross-replica code holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from stratagem._core import nest
from stratagem.errors import ArgumentError, ArgumentTypeError, StructureMismatchError

__all__ = ["DistributedValues", "Mirrored", "PerReplica", "has_distributed", "local", "regroup"]

_FIX = (
    "strategy.reduce(...) makes one value of it, strategy.gather(...) concatenates, "
    "strategy.experimental_local_results(...) lists the values that this process holds"
)


def _refuse(action: str) -> Callable[..., NoReturn]:
    def refuse(self: DistributedValues, *_args: object, **_kwargs: object) -> NoReturn:
        raise ArgumentTypeError(
            f"a {type(self).__name__} holds one value per replica, so it can't be {action}", fix=_FIX
        )

    return refuse


class DistributedValues:
    """One value per replica: `tf.distribute.DistributedValues`.

    Strategies make them; a function given to `strategy.run` receives its replica's value in their place.

    Args:
        values: The values of the replicas that this process holds, in order.
        replica_ids: The ids of those replicas; 0, 1, ... if not given.

    >>> PerReplica([1.0, 2.0]).values
    (1.0, 2.0)
    """

    __slots__ = ("_replica_ids", "_values")

    def __init__(self, values: Sequence[Any], replica_ids: Sequence[int] | None = None) -> None:
        self._values = tuple(values)
        self._replica_ids = tuple(range(len(self._values))) if replica_ids is None else tuple(replica_ids)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of this process's replicas, in order."""
        return self._values

    def __repr__(self) -> str:
        lines = (f"  {replica}: {value!r}" for replica, value in zip(self._replica_ids, self._values, strict=True))
        return f"{type(self).__name__}:{{\n" + ",\n".join(lines) + "\n}"

    __bool__ = _refuse("used as a condition")
    __len__ = _refuse("counted with len()")
    __iter__ = _refuse("iterated over")
    __getitem__ = _refuse("indexed")
    __float__ = __int__ = __index__ = _refuse("used as a number")
    __array__ = _refuse("made into an array")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refuse("calculated with")
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse("calculated with")
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _refuse("calculated with")
    __lt__ = __le__ = __gt__ = __ge__ = _refuse("compared")


class PerReplica(DistributedValues):
    """Values that may differ between replicas: what `strategy.run` returns."""

    __slots__ = ()


class Mirrored(DistributedValues):
    """Values that are equal on all replicas."""

    __slots__ = ()


def has_distributed(structure: Any) -> bool:
    """Whether any leaf of `structure` is a `DistributedValues`."""
    if isinstance(structure, DistributedValues):
        return True
    return nest.is_nested(structure) and any(isinstance(leaf, DistributedValues) for leaf in nest.flatten(structure))


def local(structure: Any, index: int, num_local: int) -> Any:
    """`structure` as local replica number `index` of `num_local` sees it.

    A structure without distributed values is returned as it is, not copied.

    Raises:
        ArgumentError: a value was made for another number of replicas.
    """
    if not has_distributed(structure):
        return structure
    return nest.pack(structure, [_local_leaf(leaf, index, num_local) for leaf in nest.flatten(structure)])


def regroup(
    structures: Sequence[Any],
    replica_ids: Sequence[int],
    make: Callable[..., Any] = PerReplica,
    *,
    keep_none: bool = True,
) -> Any:
    """One structure of distributed values out of one structure per local replica.

    Args:
        structures: What each local replica has, in order.
        replica_ids: The ids of those replicas.
        make: The class of the leaves.
        keep_none: A leaf that is None on all replicas stays a plain None.

    Raises:
        StructureMismatchError: the structures differ.
    """
    first, *others = structures
    for replica, other in zip(replica_ids[1:], others, strict=True):
        if (difference := nest.mismatch(first, other)) is not None:
            raise StructureMismatchError(
                f"replicas {replica_ids[0]} and {replica} returned values that don't fit together: {difference}",
                fix="return the same structure of dicts, lists and tuples on every replica",
            )

    def join(*leaves: Any) -> Any:
        return None if keep_none and all(leaf is None for leaf in leaves) else make(leaves, replica_ids)

    return nest.map_structure(join, *structures)


def _local_leaf(leaf: Any, index: int, num_local: int) -> Any:
    if not isinstance(leaf, DistributedValues):
        return leaf
    if len(leaf.values) != num_local:
        raise ArgumentError(
            f"a {type(leaf).__name__} of {len(leaf.values)} values was given to a strategy with {num_local} replicas "
            "in this process",
            fix="use it with the strategy that made it",
        )
    return leaf.values[index]
