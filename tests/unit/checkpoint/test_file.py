# SPDX-License-Identifier: Apache-2.0
"""A checkpoint file is there whole or not at all, and whatever is wrong with it is found when it is read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from stratagem.checkpoint import CheckpointError, Contents, describe_difference, load, read_file, write_file

pytestmark = pytest.mark.timeout(60)

CONTENTS = Contents(
    {"epoch": 2, "history": {"loss": [0.1, float("inf")]}},
    {
        "model/0000/dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model/0001/count": np.asarray(7, np.int64),
        "model/0002/empty": np.zeros((0, 3), np.uint8),
    },
)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def assert_equal(actual: Contents, expected: Contents) -> None:
    assert actual.state == expected.state
    assert list(actual.arrays) == list(expected.arrays)
    for name, array in expected.arrays.items():
        assert actual.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(actual.arrays[name], array)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.npz"
    write_file(path, CONTENTS)
    assert_equal(read_file(path), CONTENTS)
    assert os.listdir(path.parent) == ["one.npz"]


def test_equal_contents_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write_file(tmp_path / name, CONTENTS)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_numpy_alone_can_read_a_file(tmp_path: Path) -> None:
    write_file(tmp_path / "one.npz", CONTENTS)
    look = "import sys, numpy; print(numpy.load(sys.argv[1])['model/0000/dense/kernel'].sum())"
    command = [sys.executable, "-c", look, str(tmp_path / "one.npz")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "15.0\n"


def test_types_that_numpy_lacks_are_kept_exactly(tmp_path: Path) -> None:
    values = np.asarray([1.0, 3.140625, -2.0e38], ml_dtypes.bfloat16)
    write_file(tmp_path / "one.npz", Contents({}, {"weights": values}))
    kept = read_file(tmp_path / "one.npz").arrays["weights"]
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept.astype(ml_dtypes.bfloat16), values)


def test_a_file_torn_at_any_byte_is_known_for_one(tmp_path: Path) -> None:
    write_file(tmp_path / "one.npz", CONTENTS)
    data = (tmp_path / "one.npz").read_bytes()
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            load(data[:length])


def test_a_file_with_any_byte_changed_is_known_for_one(tmp_path: Path) -> None:
    write_file(tmp_path / "one.npz", CONTENTS)
    data = bytearray((tmp_path / "one.npz").read_bytes())
    for place in range(len(data)):
        data[place] ^= 0x40
        with pytest.raises(CheckpointError):
            load(bytes(data))
        data[place] ^= 0x40
    assert_equal(load(bytes(data)), CONTENTS)


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", weights=np.ones(3))
    with pytest.raises(CheckpointError, match=r"one\.npz can't be used: its checksum is wrong"):
        read_file(tmp_path / "one.npz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"one\.npz can't be used: No such file"):
        read_file(tmp_path / "one.npz")


def test_a_full_disk_is_said_and_leaves_the_file_before_as_it_was(full_disk: Path) -> None:
    path = full_disk / "one.npz"
    write_file(path, CONTENTS)
    large = Contents({}, {"weights": np.ones(100_000, np.float64)})
    with pytest.raises(CheckpointError, match=r"one\.npz can't be written: No space left on device") as caught:
        write_file(path, large)
    assert isinstance(caught.value, OSError)
    assert_equal(read_file(path), CONTENTS)
    assert os.listdir(full_disk) == ["one.npz"]


def test_a_folder_that_can_not_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match=r"taken/one\.npz can't be written: (File exists|Not a directory)"):
        write_file(tmp_path / "taken" / "one.npz", CONTENTS)


def test_an_error_in_the_contents_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_file(tmp_path / "one.npz", Contents({"what": object()}))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("present", "difference"),
    [
        ([("a/kernel", (2, 3)), ("a_4/bias", (3,))], None),
        ([("a/kernel", (2, 4)), ("a/bias", (3,))], "variable 0 is 'a/kernel' of shape (2, 4) here and 'a_1/kernel' of"),
        ([("a/kernel", (2, 3)), ("a/scale", (3,))], "variable 1 is 'a/scale' of shape (3,) here and 'a_1/bias' of"),
        ([("a/kernel", (2, 3))], "only the file has 'a_1/bias' of shape (3,) (2 variables in the file, 1 here)"),
        ([("a/kernel", (2, 3)), ("a/bias", (3,)), ("b", ())], "only this program has 'b' of shape ()"),
    ],
)
def test_the_first_variable_that_differs_is_named(present: Any, difference: str | None) -> None:
    found = describe_difference([("a_1/kernel", [2, 3]), ("a_1/bias", [3])], present)
    assert found is None if difference is None else str(found).startswith(difference)
