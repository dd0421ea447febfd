# SPDX-License-Identifier: Apache-2.0
"""How the rows of a global batch are divided among replicas; pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Share", "share_of"]


@dataclass(frozen=True)
class Share:
    """One replica's rows of one global batch.

    Attributes:
        start, stop: Its rows; equal when it has none.
        global_rows: Rows of the global batch.
    """

    start: int
    stop: int
    global_rows: int

    @property
    def rows(self) -> int:
        """How many rows this replica has; may be 0."""
        return self.stop - self.start

    @property
    def fraction(self) -> float:
        """This replica's part of the global batch; the fractions of all replicas add up to 1."""
        return self.rows / self.global_rows


def share_of(replica: int, num_replicas: int, global_rows: int) -> Share:
    """The rows of `replica`: consecutive, `ceil(global_rows / num_replicas)` each until none are left, as TensorFlow
    divides them.

    >>> [share_of(replica, 4, 5).rows for replica in range(4)]
    [2, 2, 1, 0]
    """
    size = -(-global_rows // num_replicas)
    start = min(replica * size, global_rows)
    return Share(start, min(start + size, global_rows), global_rows)
