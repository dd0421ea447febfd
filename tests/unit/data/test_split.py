# SPDX-License-Identifier: Apache-2.0
"""How a global batch is divided among replicas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.data._split import Share, share_of

pytestmark = pytest.mark.timeout(30)

shapes = st.tuples(st.integers(1, 64), st.integers(1, 10_000))


@given(shapes)
def test_every_row_goes_to_exactly_one_replica_in_order(shape: tuple[int, int]) -> None:
    replicas, rows = shape
    shares = [share_of(replica, replicas, rows) for replica in range(replicas)]
    assert [row for share in shares for row in range(share.start, share.stop)] == list(range(rows))


@given(shapes)
def test_each_replica_takes_the_ceiling_until_none_are_left(shape: tuple[int, int]) -> None:
    replicas, rows = shape
    size = math.ceil(rows / replicas)
    left = rows
    for replica in range(replicas):
        share = share_of(replica, replicas, rows)
        assert share.rows == min(size, left)
        left -= share.rows
    assert left == 0


@given(shapes)
def test_the_fractions_add_up_to_one(shape: tuple[int, int]) -> None:
    replicas, rows = shape
    shares = [share_of(replica, replicas, rows) for replica in range(replicas)]
    assert sum(share.fraction for share in shares) == pytest.approx(1.0)
    assert all(share.global_rows == rows for share in shares)
    assert [share.fraction == 0 for share in shares] == [share.rows == 0 for share in shares]


@pytest.mark.parametrize(
    ("rows", "replicas", "expected"),
    [(8, 2, [4, 4]), (7, 2, [4, 3]), (1, 3, [1, 0, 0]), (5, 4, [2, 2, 1, 0]), (9, 4, [3, 3, 3, 0])],
)
def test_rows_are_divided_as_tensorflow_divides_them(rows: int, replicas: int, expected: list[int]) -> None:
    assert [share_of(replica, replicas, rows).rows for replica in range(replicas)] == expected


def test_a_replica_without_rows_has_an_empty_share_at_the_end() -> None:
    assert share_of(3, 4, 5) == Share(5, 5, 5)
    assert share_of(3, 4, 5).fraction == 0.0
