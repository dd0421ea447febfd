# SPDX-License-Identifier: Apache-2.0
"""Whether a folder is the same one on all workers: each leaves a word there, and all look for all words."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from stratagem.doctor._check import Check, failed, ok, skipped, warning
from stratagem.doctor._report import Report, View

__all__ = ["Word", "left_word", "seen", "shared_check"]


class Word:
    """What this worker has left in the folder.

    Attributes:
        text: The random word, or None where nothing could be written.
        problem: Why not, or None.
    """

    def __init__(self, text: str | None, problem: str | None = None) -> None:
        self.text = text
        self.problem = problem


@contextlib.contextmanager
def left_word(folder: Path | None, nonce: str) -> Iterator[Word]:
    """Keep a file with a random word in `folder` as long as the block lasts."""
    if folder is None:
        yield Word(None)
        return
    path, text = _file(folder, nonce), secrets.token_hex(16)
    try:
        path.write_text(text)
    except OSError as error:
        yield Word(None, str(error))
        return
    try:
        yield Word(text)
    finally:
        path.unlink(missing_ok=True)


def seen(folder: Path, reports: Iterable[Report]) -> tuple[str, ...]:
    """The nonces of those whose word is in `folder`."""
    os.listdir(folder)  # NFS remembers for a while which files were not there; listing makes it ask again
    return tuple(report.nonce for report in reports if report.word and _read(folder, report.nonce) == report.word)


def shared_check(view: View, folder: Path | None, problem: str | None) -> Check:
    """D20: all see each other's words.

    Args:
        view: What is known.
        folder: The folder, or None where --shared was not given.
        problem: Why this worker could write nothing there.
    """
    if folder is None:
        return skipped("D20", "--shared was not given")
    if problem:
        return failed("D20", f"{view.me.task} can't write to {folder}: {problem}", "mount it, writable by this user")
    writers = [report for report in view.reports if report.word]
    blind = [
        f"{reader.task} does not see in {folder} what {', '.join(hidden)} wrote"
        for reader in writers
        if (hidden := [one.task for one in writers if one.nonce not in (reader.sees or ())])
    ]
    if blind:
        return failed("D20", blind, f"mount the same file system at {folder} on all workers: findmnt -T {folder}")
    without = [report.task for report in view.reports if not report.word]
    if without:
        return warning(
            "D20", f"{', '.join(without)} has no --shared, or can't write to it", f"--shared {folder} on all"
        )
    if len(writers) < 2:
        return skipped("D20", "no other worker came")
    return ok("D20", f"{folder} is the same on all {len(writers)} workers")


def _file(folder: Path, nonce: str) -> Path:
    return folder / f".stratagem-doctor-{nonce}"


def _read(folder: Path, nonce: str) -> str | None:
    try:
        return _file(folder, nonce).read_text()
    except OSError:
        return None
