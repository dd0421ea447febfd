# SPDX-License-Identifier: Apache-2.0
"""`stratagem.testing.assert_same_on_all_replicas`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stratagem.testing import assert_same_on_all_replicas


@pytest.mark.parametrize(
    "value",
    [1, 0.5, math.nan, "text", None, [1, (2.0, {"a": np.arange(3)})], np.array([math.nan, 1.0]), np.array(["a", "b"])],
    ids=str,
)
def test_equal_results_pass_and_the_shared_one_comes_back(value: Any) -> None:
    assert assert_same_on_all_replicas([value, value, value]) is value


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([1, 1, 2], "replica 2 differs from replica 0: 2 instead of 1"),
        ([{"a": [1, 2]}, {"a": [1, 3]}], r"replica 1 differs from replica 0 at \['a'\]\[1\]: 3 instead of 2"),
        ([{"a": 1}, {"b": 1}], r"keys \['b'\] instead of \['a'\]"),
        ([[1], [1, 2]], "2 entries instead of 1"),
        ([1, 1.0], "a float instead of a int"),
        ([np.zeros(2), np.array([0.0, 1e-30])], "replica 1 differs"),
        ([np.zeros(2), np.zeros(2, np.float32)], "replica 1 differs"),
        ([np.zeros(2), np.zeros((2, 1))], "replica 1 differs"),
        (["a", "b"], "'b' instead of 'a'"),
        ([], "there are no results to compare"),
    ],
)
def test_a_difference_is_found_and_named(results: list[Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        assert_same_on_all_replicas(results)
