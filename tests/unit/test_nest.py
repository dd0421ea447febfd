# SPDX-License-Identifier: Apache-2.0
"""Nested structures: looking into them, and putting them together again."""

from __future__ import annotations

import collections
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._core import nest
from stratagem.errors import StructureMismatchError

leaves = st.none() | st.integers() | st.text(max_size=3)
structures = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


class Pair(NamedTuple):
    first: object
    second: object


@given(structures)
def test_packing_the_leaves_gives_the_structure_back(structure: object) -> None:
    assert nest.pack(structure, nest.flatten(structure)) == structure
    assert nest.mismatch(structure, structure) is None


def test_dicts_filled_in_another_order_agree() -> None:
    assert nest.flatten({"b": 1, "a": 2}) == nest.flatten({"a": 2, "b": 1}) == [2, 1]
    assert list(nest.pack({"b": 0, "a": 0}, [1, 2])) == ["b", "a"]


def test_keys_that_cannot_be_sorted_stay_in_their_order() -> None:
    assert nest.flatten({"a": 1, 0: 2}) == [1, 2]


def test_subclasses_stay_themselves() -> None:
    packed = nest.pack(Pair(1, collections.OrderedDict(x=2)), "ab")
    assert packed == Pair("a", collections.OrderedDict(x="b"))
    assert isinstance(packed.second, collections.OrderedDict)
    counted = collections.defaultdict(list, x=1)
    assert nest.pack(counted, [2]).default_factory is list
    assert counted == {"x": 1}


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"a": [1]}, "the value['a'] is [int, int] in one and [int] in the other"),
        ({"a": (1, 2)}, "the value['a'] is [int, int] in one and (int, int) in the other"),
        ({"b": [1, 2]}, "the value is {'a': [int, int]} in one and {'b': [int, int]} in the other"),
        ({"a": [1, [2]]}, "the value['a'][1] is int in one and [int] in the other"),
        (None, "the value is {'a': [int, int]} in one and None in the other"),
    ],
)
def test_a_mismatch_names_the_place(other: object, text: str) -> None:
    assert nest.mismatch({"a": [1, 2]}, other) == text
    with pytest.raises(StructureMismatchError, match="structures 0 and 1 differ") as caught:
        nest.map_structure(lambda *_: None, {"a": [1, 2]}, other)
    assert text in str(caught.value)


def test_a_one_tuple_is_described_as_one() -> None:
    assert nest.describe((1,)) == "(int,)"
    assert nest.describe(Pair(1, None)) == "Pair(int, None)"
