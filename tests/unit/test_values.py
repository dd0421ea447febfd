# SPDX-License-Identifier: Apache-2.0
"""Values per replica: what they show, and what they refuse."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

import stratagem as distribute
from stratagem._core import values
from stratagem.errors import ArgumentError, ArgumentTypeError, StructureMismatchError


def test_they_show_the_replicas_they_are_of() -> None:
    assert repr(values.PerReplica([1.0, "a"])) == "PerReplica:{\n  0: 1.0,\n  1: 'a'\n}"
    assert repr(values.Mirrored([1.0], replica_ids=[3])) == "Mirrored:{\n  3: 1.0\n}"


def test_they_are_distributed_values() -> None:
    assert issubclass(values.PerReplica, distribute.DistributedValues)
    assert issubclass(values.Mirrored, distribute.DistributedValues)
    assert values.PerReplica([1, 2]).values == (1, 2)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (bool, "used as a condition"),
        (len, r"counted with len\(\)"),
        (list, "iterated over"),
        (lambda v: v[0], "indexed"),
        (float, "used as a number"),
        (int, "used as a number"),
        (range, "used as a number"),
        (lambda v: v + 1, "calculated with"),
        (lambda v: 2 * v, "calculated with"),
        (lambda v: v / 2, "calculated with"),
        (operator.neg, "calculated with"),
        (lambda v: v > 1, "compared"),
    ],
)
def test_using_one_as_a_single_value_says_what_to_do(use: Callable[[Any], object], text: str) -> None:
    with pytest.raises(
        ArgumentTypeError, match=f"a PerReplica holds one value per replica, so it can't be {text}"
    ) as caught:
        use(values.PerReplica([1, 2]))
    assert "strategy.reduce" in str(caught.value)
    assert "strategy.experimental_local_results" in str(caught.value)


def test_making_an_array_of_one_is_refused() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ArgumentTypeError, match="made into an array"):
        numpy.asarray(values.PerReplica([1, 2]))


def test_a_replica_sees_its_own_value() -> None:
    structure = {"x": [values.PerReplica([1, 2]), "same"]}
    assert values.local(structure, 1, 2) == {"x": [2, "same"]}


def test_a_structure_without_distributed_values_is_not_copied() -> None:
    structure = {"x": [1]}
    assert values.local(structure, 0, 2) is structure


def test_a_value_of_another_strategy_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a PerReplica of 2 values was given to a strategy with 3 replicas"):
        values.local(values.PerReplica([1, 2]), 0, 3)


def test_regrouping_keeps_what_is_none_everywhere() -> None:
    grouped = values.regroup([{"a": None, "b": 1}, {"a": None, "b": None}], (0, 1))
    assert grouped["a"] is None
    assert grouped["b"].values == (1, None)
    assert values.regroup([None], (0,), keep_none=False).values == (None,)


def test_regrouping_names_the_replicas_that_differ() -> None:
    with pytest.raises(StructureMismatchError, match="replicas 4 and 6 returned values that don't fit together"):
        values.regroup([[1], [1], [1, 2]], (4, 5, 6))
