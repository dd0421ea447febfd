# SPDX-License-Identifier: Apache-2.0
"""How a data set is divided among workers, and why so."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._core.input_options import AutoShardPolicy
from stratagem.data._source import RowSource, Source
from stratagem.errors import ArgumentError

__all__ = ["ShardReport", "choose"]


@dataclass(frozen=True)
class ShardReport:
    """How a data set was divided; `str` says it in a line.

    Attributes:
        policy: OFF, FILE, DATA or HINT; AUTO has become one of them.
        reason: Why that one.
        source: What kind of data set it is.
        num_workers: Among how many it was divided.
        rows: Rows of each worker in a pass, as far as is known.
        steps_per_epoch: Steps of a pass; None if nobody knows, or it has no end.
    """

    policy: AutoShardPolicy
    reason: str
    source: str
    num_workers: int
    rows: tuple[int, ...] | None = None
    steps_per_epoch: int | None = None

    def __str__(self) -> str:
        workers = f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}"
        parts = [f"{self.source} over {workers}: {self.policy.name}, {self.reason}"]
        if self.rows is not None:
            parts.append(f"rows per worker: {', '.join(map(str, self.rows))}")
        steps = "unknown" if self.steps_per_epoch is None else str(self.steps_per_epoch)
        return "; ".join([*parts, f"steps per epoch: {steps}"])


def choose(source: Source, num_workers: int) -> tuple[AutoShardPolicy, str]:
    """The policy for a data set over so many workers, and the reason.

    Raises:
        ArgumentError: its options ask for FILE, but it does not read files; or it has been divided already.
    """
    if source.own_shard is not None:
        raise ArgumentError(
            f"the {source.kind} has a {source.own_shard.name}, which leaves one process's rows in it, but Stratagem "
            "divides every global batch by itself",
            fix=f"{source.own_shard.instead}; or make the data set in strategy.distribute_datasets_from_function",
        )
    asked = source.policy
    if num_workers == 1:
        return AutoShardPolicy.DATA, "each replica gets its rows of every global batch, as there is one worker"
    if asked in (AutoShardPolicy.OFF, AutoShardPolicy.HINT):
        return asked, "as its options say"
    if asked is AutoShardPolicy.DATA:
        return asked, "as its options say: each worker gets its rows of every global batch"
    files = source.num_files(num_workers)
    if files is None and asked is AutoShardPolicy.FILE:
        raise ArgumentError(
            f"AutoShardPolicy.FILE was asked for, but the {source.kind} reads no files that could be divided",
            fix="use AutoShardPolicy.DATA, or AUTO",
        )
    if files is not None and files >= num_workers:
        return AutoShardPolicy.FILE, "each worker reads its share of the files"
    rows = "each worker gets its rows of every global batch"
    if files is not None:
        return AutoShardPolicy.DATA, f"{files} file{'s are' if files != 1 else ' is'} fewer than workers: {rows}"
    why = "its rows can be read one by one" if isinstance(source, RowSource) else "it reads no files"
    return AutoShardPolicy.DATA, f"{why}: {rows}"
