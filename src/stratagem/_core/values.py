# SPDX-License-Identifier: Apache-2.0
"""Values that differ between replicas, as cross-replica code holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from stratagem._core import nest
from stratagem._core.enums import Reduction
from stratagem.errors import ArgumentError, ArgumentTypeError, StructureMismatchError

__all__ = [
    "DistributedValues",
    "Mirrored",
    "PerReplica",
    "ReplicaVariable",
    "Stack",
    "check_count",
    "copies_of",
    "has_distributed",
    "local",
    "regroup",
    "rows_of_batch",
]

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


class Stack(ABC):
    """The values of all replicas in one piece, which stays on their devices until somebody looks at single ones.

    Engines make them; all values have the same shape and dtype.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one replica's value."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """The dtype of the values."""

    @property
    @abstractmethod
    def needs_no_others(self) -> bool:
        """Whether reducing it waits for no other process, which could be late, lost or busy with another call."""

    @abstractmethod
    def unstack(self) -> Sequence[Any]:
        """The values of this process's replicas, in order."""

    @abstractmethod
    def reduce(self, op: Reduction, dims: tuple[int, ...] | None, others: Sequence[Stack] = ()) -> list[Any]:
        """The values of this stack and of `others`, each reduced over replicas and the dimensions `dims`."""

    @abstractmethod
    def gather(self, dim: int) -> Any:
        """The replicas' values, concatenated along `dim`."""


class DistributedValues:
    """One value per replica: `tf.distribute.DistributedValues`.

    Strategies make them; a function given to `strategy.run` receives its replica's value in their place.

    Args:
        values: The values of the replicas that this process holds, in order.
        replica_ids: The ids of those replicas; 0, 1, ... if not given.

    >>> PerReplica([1.0, 2.0]).values
    (1.0, 2.0)
    """

    __slots__ = ("_replica_ids", "_rows", "_stack", "_values")

    def __init__(self, values: Sequence[Any], replica_ids: Sequence[int] | None = None) -> None:
        self._values: tuple[Any, ...] | None = tuple(values)
        self._replica_ids = tuple(range(len(self._values))) if replica_ids is None else tuple(replica_ids)
        self._stack: Stack | None = None
        self._rows: tuple[tuple[int, int, int], ...] | None = None

    @classmethod
    def of_stack(cls, stack: Stack, replica_ids: Sequence[int]) -> Self:
        """The values in `stack`, of which this process holds those of the replicas `replica_ids`."""
        made = cls.__new__(cls)
        made._values, made._replica_ids, made._stack, made._rows = None, tuple(replica_ids), stack, None
        return made

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of this process's replicas, in order."""
        if self._values is None:
            assert self._stack is not None, "made with one of both"
            self._values = tuple(self._stack.unstack())
        return self._values

    @property
    def replica_ids(self) -> tuple[int, ...]:
        """The replicas whose values this process holds (not in `tf.distribute`)."""
        return self._replica_ids

    @property
    def num_local(self) -> int:
        """How many replicas' values this process holds (not in `tf.distribute`)."""
        return len(self._replica_ids)

    @property
    def stack(self) -> Stack | None:
        """All replicas' values in one piece, where an engine keeps them so (not in `tf.distribute`)."""
        return self._stack

    @property
    def rows(self) -> tuple[tuple[int, int, int], ...] | None:
        """Which rows of a global batch each value has: the first, how many, and of how many (not in `tf.distribute`).

        None where the values are no parts of a global batch.
        """
        return self._rows

    def keep_rows(self, rows: tuple[tuple[int, int, int], ...]) -> None:
        """Remember which rows of a global batch the values have (not in `tf.distribute`)."""
        self._rows = rows

    def keep_stack(self, stack: Stack) -> None:
        """Remember a stack made of the values (not in `tf.distribute`)."""
        self._stack = stack

    def __repr__(self) -> str:
        lines = (f"  {replica}: {value!r}" for replica, value in zip(self._replica_ids, self.values, strict=True))
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


class ReplicaVariable:
    """A variable of which each replica has a copy of its own: what layers below Keras see of `stratagem.Variable`."""

    __slots__ = ()

    @property
    @abstractmethod
    def own_value(self) -> Any:
        """The copy here, whatever the variable's synchronization says; in a trace that of the replica."""

    @abstractmethod
    def assign_own(self, value: Any) -> None:
        """Write the copy here, whatever the variable's aggregation says."""

    @property
    @abstractmethod
    def replica_values(self) -> DistributedValues:
        """The copies of the replicas that this process holds."""


def copies_of(leaf: Any) -> Any:
    """A variable's copies as a value per replica; anything else as it is."""
    return leaf.replica_values if isinstance(leaf, ReplicaVariable) else leaf


def has_distributed(structure: Any) -> bool:
    """Whether any leaf of `structure` is a `DistributedValues`."""
    if isinstance(structure, DistributedValues):
        return True
    return nest.is_nested(structure) and any(isinstance(leaf, DistributedValues) for leaf in nest.flatten(structure))


def rows_of_batch(structure: Any) -> tuple[tuple[int, int, int], ...] | None:
    """Which rows of the global batch the local replicas have, as the first value that knows says."""
    leaves = (leaf for leaf in nest.flatten(structure) if isinstance(leaf, DistributedValues))
    return next((leaf.rows for leaf in leaves if leaf.rows is not None), None)


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
    if keep_none and all(structure is None for structure in structures):
        return None
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
    check_count(leaf, num_local)
    return leaf.values[index]


def check_count(leaf: DistributedValues, num_local: int) -> None:
    """Check that a value has one part for each of `num_local` replicas.

    Raises:
        ArgumentError: it was made for another number of replicas.
    """
    if leaf.num_local != num_local:
        raise ArgumentError(
            f"a {type(leaf).__name__} of {leaf.num_local} values was given to a strategy with {num_local} replicas "
            "in this process",
            fix="use it with the strategy that made it",
        )
