# SPDX-License-Identifier: Apache-2.0
"""Where the replicas that one process runs in threads meet inside `strategy.run`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import CollectiveMismatchError, CollectiveTimeoutError, ReplicaFailedError

__all__ = ["MergePoint"]


@dataclass
class _Round:
    arrived: dict[int, tuple[str, Any]] = field(default_factory=dict)
    results: dict[int, Any] | None = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.results is not None or self.error is not None


class MergePoint:
    """Replicas hand in a value, the last to come acts on all of them, each takes its own result away.

    Args:
        replica_ids: The replicas that take part.
        timeout_seconds: How long one waits for the others.
    """

    def __init__(self, replica_ids: Sequence[int], timeout_seconds: float) -> None:
        self._replica_ids = tuple(replica_ids)
        self._timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self._round = _Round()
        self._gone: dict[int, str] = {}

    def meet(self, replica_id: int, call: str, value: Any, act: Callable[[tuple[Any, ...]], Sequence[Any]]) -> Any:
        """Wait for all replicas, then return this one's part of `act(values)`.

        Args:
            replica_id: Who comes.
            call: The public method that brought it here; all must come by the same one.
            value: What it hands in.
            act: Called once, by the last to come, with the values in replica order.

        Raises:
            CollectiveMismatchError: another replica made a different call, or returned without one.
            CollectiveTimeoutError: another replica did not come in time.
            ReplicaFailedError: another replica raised.
        """
        with self._changed:
            this = self._round
            this.arrived[replica_id] = (call, value)
            self._settle(this, act)
            if not self._changed.wait_for(lambda: this.over, self._timeout_seconds):
                self._end(this, error=self._too_late(this))
            if this.error is not None:
                raise this.error
            assert this.results is not None, "settled without error"
            return this.results[replica_id]

    def leave(self, replica_id: int, failure: BaseException | None = None) -> None:
        """Note that a replica's function has returned, or raised `failure`."""
        with self._changed:
            self._gone[replica_id] = "returned" if failure is None else f"raised {failure!r}"
            if self._round.arrived:
                self._settle(self._round, None)

    def _settle(self, this: _Round, act: Callable[[tuple[Any, ...]], Sequence[Any]] | None) -> None:
        if (error := self._missing(this) or _disagreement(this)) is not None:
            self._end(this, error=error)
        elif act is not None and len(this.arrived) == len(self._replica_ids):
            try:
                results = act(tuple(this.arrived[replica][1] for replica in self._replica_ids))
            except BaseException as failure:  # noqa: BLE001 - every replica gets it
                self._end(this, error=failure)
            else:
                self._end(this, results=dict(zip(self._replica_ids, results, strict=True)))

    def _end(self, this: _Round, *, results: dict[int, Any] | None = None, error: BaseException | None = None) -> None:
        this.results, this.error = results, error
        self._round = _Round()
        self._changed.notify_all()

    def _missing(self, this: _Round) -> BaseException | None:
        for gone, how in self._gone.items():
            if gone in this.arrived:
                continue
            waiting, (call, _) = next(iter(this.arrived.items()))
            text = f"replica {waiting} waits in {call}, but replica {gone} {how} without it"
            if how != "returned":
                return ReplicaFailedError(text)
            return CollectiveMismatchError(text, fix=f"call {call} equally often on every replica")
        return None

    def _too_late(self, this: _Round) -> BaseException:
        absent = [replica for replica in self._replica_ids if replica not in this.arrived]
        calls = sorted({call for call, _ in this.arrived.values()})
        return CollectiveTimeoutError(
            f"replicas {absent} did not reach {calls[0]} in {self._timeout_seconds:g} seconds; "
            f"there: {sorted(this.arrived)}",
            fix="call it on every replica, or raise STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS",
        )


def _disagreement(this: _Round) -> BaseException | None:
    first, *others = sorted(this.arrived.items())
    for replica, (call, _) in others:
        if call != first[1][0]:
            return CollectiveMismatchError(
                f"replica {first[0]} called {first[1][0]} where replica {replica} called {call}",
                fix="make the same calls in the same order on every replica",
            )
    return None
