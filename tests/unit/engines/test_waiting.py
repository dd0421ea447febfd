# SPDX-License-Identifier: Apache-2.0
"""Waiting: returns when ready, looks around while it waits, and gives up in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stratagem.engines.torch import _waiting
from stratagem.engines.torch._waiting import wait_until

pytestmark = pytest.mark.timeout(30)


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_waiting, "time", clock)
    return clock


def after(calls: int) -> Callable[[], bool]:
    """Ready at that call."""
    left: Iterator[bool] = iter([False] * (calls - 1))
    return lambda: next(left, True)


def wait(ready: Callable[[], bool], seconds: float = 1.0, on_stall: Callable[[], None] = lambda: None) -> None:
    wait_until(
        ready, timeout_seconds=seconds, on_stall=on_stall, on_timeout=lambda waited: TimeoutError(f"{waited:g} seconds")
    )


def test_what_is_ready_is_not_waited_for(clock: Clock) -> None:
    wait(lambda: True)
    assert clock.naps == []


def test_what_comes_soon_is_waited_for_without_sleeping(clock: Clock) -> None:
    wait(after(100))
    assert clock.naps == []


def test_naps_grow_to_a_millisecond_and_no_further(clock: Clock) -> None:
    wait(after(_waiting._SPINS + 500))
    assert clock.naps == sorted(clock.naps)
    assert clock.naps[0] < 50e-6
    assert clock.naps[-1] == 1e-3


def test_whoever_waits_learns_at_most_a_twentieth_late(clock: Clock) -> None:
    wait(lambda: clock.now > 5e-3)
    assert clock.now < 5e-3 * 1.05


def test_whoever_waits_looks_around_ten_times_a_second(clock: Clock) -> None:
    looks: list[float] = []
    with pytest.raises(TimeoutError):
        wait(lambda: False, 3.0, lambda: looks.append(clock.now))
    assert 25 <= len(looks) <= 30


def test_what_looking_around_raises_ends_the_wait(clock: Clock) -> None:
    def look() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        wait(lambda: False, 1000.0, look)
    assert clock.now < 0.2


def test_the_limit_ends_the_wait_with_the_callers_error(clock: Clock) -> None:
    with pytest.raises(TimeoutError, match=r"2.5 seconds"):
        wait(lambda: False, 2.5)
    assert 2.5 <= clock.now < 2.51


def test_what_is_ready_in_the_last_moment_counts(clock: Clock) -> None:
    wait(lambda: clock.now > 1.0, 1.0)
    assert clock.now > 1.0
