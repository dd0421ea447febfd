# SPDX-License-Identifier: Apache-2.0
"""Jobs that may be broken, made in a moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.jobs import RunJob, nursery


@pytest.fixture(scope="module")
def run_job() -> Iterator[RunJob]:
    """`run_job(program, replicas, transport)` runs `program(rank)` in processes that form a job."""
    with nursery() as run:
        yield run
