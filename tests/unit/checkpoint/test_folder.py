# SPDX-License-Identifier: Apache-2.0
"""A folder keeps the last checkpoints, and the last one that can be used is found."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from stratagem.checkpoint import CheckpointError, Contents, Folder

pytestmark = pytest.mark.timeout(60)


def contents(number: int) -> Contents:
    return Contents({"number": number}, {"values": np.full(3, number)})


def folder_with(path: Path, *numbers: int, keep: int = 2) -> Folder:
    folder = Folder(path, "backup", keep)
    for number in numbers:
        folder.write(number, contents(number))
    return folder


def latest(folder: Folder) -> int | None:
    found = folder.latest()
    if found is None:
        return None
    number, _, read = found
    assert read.state == {"number": number}
    return number


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 1, 5, 10, 200, keep=3)
    assert folder.numbers() == [5, 10, 200]
    assert latest(folder) == 200


def test_a_number_written_again_replaces_the_file(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 1, 2, 2)
    assert folder.numbers() == [1, 2]


def test_an_empty_or_missing_folder_has_none(tmp_path: Path) -> None:
    assert folder_with(tmp_path).latest() is None
    assert folder_with(tmp_path / "missing").latest() is None


def test_a_damaged_file_falls_back_to_the_one_before_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_with(tmp_path, 3, 4)
    data = folder.file(4).read_bytes()
    for damaged in (data[:-1], data[: len(data) // 2], b"", b"something else"):
        folder.file(4).write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "stratagem"):
            assert latest(folder) == 3
        (record,) = caplog.records
        assert str(folder.file(4)) in record.getMessage()
        assert f"trying {folder.file(3).name}" in record.getMessage()


def test_when_none_is_good_a_warning_names_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_with(tmp_path, 3, 4)
    for number in (3, 4):
        folder.file(number).write_bytes(b"torn")
    with caplog.at_level(logging.WARNING, "stratagem"):
        assert folder.latest() is None
    newest, oldest = (record.getMessage() for record in caplog.records)
    assert str(folder.file(4)) in newest
    assert str(folder.file(3)) in oldest
    assert "starting at the beginning" in oldest


def test_a_file_of_a_future_that_was_given_up_is_deleted(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 3, 9)
    folder.file(9).write_bytes(b"torn")
    folder.write(4, contents(4))
    assert folder.numbers() == [3, 4]


def test_what_a_killed_writer_left_is_swept_up_and_other_files_stay(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 1)
    (tmp_path / ".backup-000000000002.npz.4711.partial").write_bytes(b"half")
    (tmp_path / "backup-of-mine.npz").write_bytes(b"mine")
    folder.write(2, contents(2))
    assert sorted(os.listdir(tmp_path)) == ["backup-000000000001.npz", "backup-000000000002.npz", "backup-of-mine.npz"]
    folder.delete()
    assert os.listdir(tmp_path) == ["backup-of-mine.npz"]


def test_a_deleted_folder_is_gone(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "backup", 1, 2)
    folder.delete()
    folder.delete()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match=r"folder of checkpoints .*taken can't be read"):
        folder_with(tmp_path / "taken").latest()
