# SPDX-License-Identifier: Apache-2.0
"""Lines of several processes on one terminal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratagem.launch._output import Source, Terminal

IDLE_SECONDS = 1.0


@pytest.fixture
def screen() -> bytearray:
    return bytearray()


@pytest.fixture
def sources(screen: bytearray) -> tuple[Source, Source]:
    terminal = Terminal()
    write: Callable[[bytes], None] = screen.extend
    return Source(terminal, b"[0] ", write), Source(terminal, b"[1] ", write)


Pair = tuple[Source, Source]


def test_every_line_gets_a_prefix(screen: bytearray, sources: Pair) -> None:
    sources[0].feed(b"a\n\nb\r\n", 0.0)
    assert screen == b"[0] a\n[0] \n[0] b\r\n"


def test_a_line_in_pieces_is_written_whole(screen: bytearray, sources: Pair) -> None:
    sources[0].feed(b"a", 0.0)
    sources[1].feed(b"other\n", 0.0)
    sources[0].flush_if_idle(0.01)
    assert screen == b"[1] other\n"
    sources[0].feed(b" b\n", 0.02)
    assert screen == b"[1] other\n[0] a b\n"


def test_half_a_line_is_shown_when_its_process_pauses_and_goes_on_without_another_prefix(
    screen: bytearray, sources: Pair
) -> None:
    sources[0].feed(b"half", 0.0)
    sources[0].flush_if_idle(IDLE_SECONDS)
    assert screen == b"[0] half"
    sources[0].feed(b" whole\n", IDLE_SECONDS)
    assert screen == b"[0] half whole\n"


def test_a_line_of_another_starts_below_half_a_line_which_then_starts_anew(screen: bytearray, sources: Pair) -> None:
    sources[0].feed(b"half", 0.0)
    sources[0].flush_if_idle(IDLE_SECONDS)
    sources[1].feed(b"other\n", IDLE_SECONDS)
    sources[0].feed(b" whole\n", IDLE_SECONDS)
    assert screen == b"[0] half\n[1] other\n[0]  whole\n"


def test_a_progress_bar_is_redrawn_in_its_place_behind_its_prefix(screen: bytearray, sources: Pair) -> None:
    sources[0].feed(b"\r1/2", 0.0)
    sources[0].flush_if_idle(IDLE_SECONDS)
    sources[0].feed(b"\b\b\b\r2/2\n", IDLE_SECONDS)  # as Keras draws it
    assert screen == b"\r[0] 1/2\b\b\b\r[0] 2/2\n"


def test_a_progress_bar_moves_below_a_line_of_another(screen: bytearray, sources: Pair) -> None:
    sources[0].feed(b"\r1/2", 0.0)
    sources[0].flush_if_idle(IDLE_SECONDS)
    sources[1].feed(b"other\n", IDLE_SECONDS)
    sources[0].feed(b"\b\b\b\r2/2\n", IDLE_SECONDS)
    assert screen == b"\r[0] 1/2\n[1] other\n\b\b\b\r[0] 2/2\n"


def test_a_line_of_another_does_not_overwrite_a_bar_that_ended_in_a_carriage_return(
    screen: bytearray, sources: Pair
) -> None:
    sources[0].feed(b"1/2\r", 0.0)
    sources[1].feed(b"other\n", 0.0)
    assert screen == b"[0] 1/2\r\n[1] other\n"


def test_no_character_is_cut_in_two(screen: bytearray, sources: Pair) -> None:
    bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}".encode()
    sources[0].feed(bar + bar[:2], 0.0)
    sources[0].flush_if_idle(IDLE_SECONDS)
    assert screen == b"[0] " + bar
    sources[0].feed(bar[2:], IDLE_SECONDS)
    sources[0].flush_if_idle(3 * IDLE_SECONDS)
    assert screen == b"[0] " + bar + bar


@pytest.mark.parametrize("last", [b"end", b"\xe2\x94", b"\xff"])
def test_nothing_is_lost_at_the_end(screen: bytearray, sources: Pair, last: bytes) -> None:
    sources[0].feed(last, 0.0)
    sources[0].end()
    assert screen == b"[0] " + last


def test_a_line_without_end_is_not_kept_back_for_ever(screen: bytearray, sources: Pair) -> None:
    sources[0].feed(b"x" * 100_000, 0.0)
    assert screen == b"[0] " + b"x" * 100_000


def test_the_tail_holds_the_last_that_was_written(sources: Pair) -> None:
    for number in range(100_000):
        sources[0].feed(b"%d\n" % number, 0.0)
    assert sources[0].tail.endswith(b"\n99998\n99999\n")
    assert len(sources[0].tail) <= 1 << 16
