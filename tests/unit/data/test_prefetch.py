# SPDX-License-Identifier: Apache-2.0
"""Reading ahead: in order, bounded, with the pipeline's own errors, and without a thread left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from stratagem.data._prefetch import Ahead
from tests.waiting import until


def test_no_more_than_its_depth_is_read_before_it_is_asked_for() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    ahead = Ahead(items(), depth=3)
    until(lambda: len(read) == 4, "three wait, and one is in hand")
    time.sleep(0.1)
    assert len(read) == 4
    assert [next(ahead) for _ in range(2)] == [0, 1]
    until(lambda: len(read) == 6, "two more are read")
    ahead.close()


def test_an_error_comes_where_its_element_would_have_with_the_pipelines_own_lines() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("a row is missing")

    ahead = Ahead(items(), depth=2)
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="a row is missing") as caught:
        next(ahead)
    assert any(entry.name == "items" for entry in caught.traceback)
    assert list(ahead) == []


def test_its_thread_ends_when_it_is_dropped() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    ahead = Ahead(endless(), depth=1)
    next(ahead)
    thread = ahead._thread
    del ahead
    gc.collect()
    until(lambda: not thread.is_alive(), "the thread ends")
    assert all(one.name != "stratagem-prefetch" for one in threading.enumerate())


def test_after_the_end_it_stays_at_its_end() -> None:
    ahead = Ahead(iter([1]), depth=1)
    assert list(ahead) == [1]
    assert next(ahead, None) is None
