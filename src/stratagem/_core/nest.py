# SPDX-License-Identifier: Apache-2.0
"""Nested structures: dicts, lists, tuples and named tuples; everything else, None included, is a leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from stratagem.errors import StructureMismatchError

__all__ = ["describe", "flatten", "is_nested", "map_structure", "mismatch", "pack"]


def is_nested(value: Any) -> bool:
    """Whether `value` is a container that the functions here look into."""
    return isinstance(value, dict | list | tuple)


def flatten(structure: Any) -> list[Any]:
    """The leaves of `structure`, a dict's in the order of its sorted keys.

    >>> flatten({"b": [1, (2,)], "a": None})
    [None, 1, 2]
    """
    if not is_nested(structure):
        return [structure]
    return [leaf for child in _children(structure) for leaf in flatten(child)]


def pack(structure: Any, leaves: Sequence[object]) -> Any:
    """`structure` with its leaves replaced by `leaves`, which come in the order of `flatten`.

    >>> pack({"b": [0, (0,)], "a": 0}, "xyz")
    {'b': ['y', ('z',)], 'a': 'x'}
    """
    remaining = iter(leaves)
    packed = _pack(structure, remaining)
    assert next(remaining, None) is None, "as many leaves as the structure has"
    return packed


def map_structure(fn: Callable[..., object], *structures: Any) -> Any:
    """`fn` of the leaves that lie in the same place of each structure, in a structure like the first.

    >>> map_structure(lambda a, b: a + b, {"x": 1}, {"x": 2})
    {'x': 3}

    Raises:
        StructureMismatchError: the structures differ.
    """
    first, *others = structures
    for number, other in enumerate(others, start=1):
        if (difference := mismatch(first, other)) is not None:
            raise StructureMismatchError(f"structures 0 and {number} differ: {difference}")
    return pack(first, [fn(*leaves) for leaves in zip(*map(flatten, structures), strict=True)])


def describe(structure: Any) -> str:
    """The shape of a structure in a few words, for error texts.

    >>> describe({"a": 1, "b": [2, None]})
    "{'a': int, 'b': [int, None]}"
    """
    if _is_dict(structure):
        return "{" + ", ".join(f"{key!r}: {describe(structure[key])}" for key in _keys(structure)) + "}"
    if _is_tuple(structure):
        inside = ", ".join(map(describe, structure))
        name = type(structure).__name__ if type(structure) is not tuple else ""
        return f"{name}({inside},)" if len(structure) == 1 else f"{name}({inside})"
    if _is_list(structure):
        return "[" + ", ".join(map(describe, structure)) + "]"
    return "None" if structure is None else type(structure).__name__


def mismatch(first: Any, second: Any, place: str = "the value") -> str | None:
    """How two structures differ, or None if they don't.

    >>> mismatch({"a": [1]}, {"a": [1, 2]})
    "the value['a'] is [int] in one and [int, int] in the other"
    """
    alike = is_nested(first) == is_nested(second)
    if alike and not is_nested(first):
        return None
    if not alike or _kind(first) is not _kind(second) or _places(first) != _places(second):
        return f"{place} is {describe(first)} in one and {describe(second)} in the other"
    pairs = zip(_places(first), _children(first), _children(second), strict=True)
    return next((found for at, a, b in pairs if (found := mismatch(a, b, f"{place}[{at!r}]")) is not None), None)


def _is_dict(value: Any) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _is_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _kind(container: Any) -> object:
    return dict if _is_dict(container) else container.__class__


def _places(container: Any) -> list[Any]:
    return _keys(container) if _is_dict(container) else list(range(len(container)))


def _children(container: Any) -> list[Any]:
    return [container[place] for place in _places(container)]


def _keys(mapping: Mapping[Any, object]) -> list[Any]:
    # Sorted, so that replicas that filled a dict in different orders still agree on the order of its leaves.
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)


def _pack(structure: Any, leaves: Iterator[object]) -> Any:
    if not is_nested(structure):
        return next(leaves)
    children = [_pack(child, leaves) for child in _children(structure)]
    if _is_dict(structure):
        return _like_dict(structure, dict(zip(_keys(structure), children, strict=True)))
    if hasattr(structure, "_fields"):
        return type(structure)(*children)
    return type(structure)(children)


def _like_dict(original: dict[Any, Any], values: dict[Any, Any]) -> dict[Any, Any]:
    in_order = {key: values[key] for key in original}
    if type(original) is dict:
        return in_order
    # A subclass may need arguments that only it knows (a defaultdict's factory), so fill a copy.
    copied = original.copy()
    copied.update(in_order)
    return copied
