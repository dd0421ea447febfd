# SPDX-License-Identifier: Apache-2.0
"""How workers share a data set, and what the report says of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stratagem import AutoShardPolicy
from stratagem.data._arrays import ArrayDataset
from stratagem.data._policy import ShardReport, choose
from stratagem.data._source import Source
from stratagem.errors import ArgumentError


class Files(Source):
    kind = "data set of files"

    def __init__(self, files: int | None, policy: AutoShardPolicy = AutoShardPolicy.AUTO) -> None:
        self._files = files
        self.policy = policy

    @property
    def num_batches(self) -> int | None:
        return None

    def num_files(self, wanted: int) -> int | None:
        return self._files

    def batches(self, start: int) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("files", "asked", "workers", "policy", "reason"),
    [
        (9, AutoShardPolicy.FILE, 1, AutoShardPolicy.DATA, "as there is one worker"),
        (3, AutoShardPolicy.AUTO, 3, AutoShardPolicy.FILE, "each worker reads its share of the files"),
        (1, AutoShardPolicy.AUTO, 3, AutoShardPolicy.DATA, "1 file is fewer than workers"),
        (2, AutoShardPolicy.FILE, 3, AutoShardPolicy.DATA, "2 files are fewer than workers"),
        (None, AutoShardPolicy.AUTO, 2, AutoShardPolicy.DATA, "it reads no files"),
        (3, AutoShardPolicy.DATA, 2, AutoShardPolicy.DATA, "as its options say"),
        (3, AutoShardPolicy.OFF, 2, AutoShardPolicy.OFF, "as its options say"),
        (3, AutoShardPolicy.HINT, 2, AutoShardPolicy.HINT, "as its options say"),
    ],
)
def test_report_16_files_are_shared_where_there_are_enough_and_rows_otherwise(
    files: int | None, asked: AutoShardPolicy, workers: int, policy: AutoShardPolicy, reason: str
) -> None:
    chosen, why = choose(Files(files, asked), workers)
    assert chosen is policy
    assert reason in why


def test_files_that_are_not_there_can_not_be_asked_for() -> None:
    with pytest.raises(ArgumentError, match=r"AutoShardPolicy\.FILE was asked for, but the data set of files reads no"):
        choose(Files(None, AutoShardPolicy.FILE), 2)


def test_rows_that_can_be_read_one_by_one_are_shared() -> None:
    policy, reason = choose(ArrayDataset(np.arange(4), 2), 2)
    assert policy is AutoShardPolicy.DATA
    assert reason == "its rows can be read one by one: each worker gets its rows of every global batch"


def test_report_19_a_line_says_who_reads_what_and_how_many_steps_an_epoch_has() -> None:
    report = ShardReport(AutoShardPolicy.DATA, "it reads no files", "list", 3, (4, 4, 2), 5)
    assert str(report) == ("list over 3 workers: DATA, it reads no files; rows per worker: 4, 4, 2; steps per epoch: 5")
    assert str(ShardReport(AutoShardPolicy.OFF, "as its options say", "list", 1)).endswith("steps per epoch: unknown")
