# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, as the bytes of one file: an `.npz` archive that numpy alone can read.

Its entry "header" is JSON. The archive's comment, which is the end of the file, is the SHA-256 of all bytes before it,
so that a file which is torn, cut off or altered anywhere is known for one.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from stratagem.errors import CheckpointError

__all__ = ["Contents", "describe_difference", "pack", "unpack"]

_FORMAT = "stratagem-checkpoint"
_VERSION = 1
_HEADER = "header"
_DIGEST_BYTES = 64  # in hexadecimal
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes:
        state: What JSON can say: numbers, texts, lists and dicts.
        arrays: Arrays by name, in order. Types that numpy does not have, such as bfloat16, are kept as float32.
    """

    state: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class _Hashing(io.RawIOBase):
    """Hashes what is written on its way to a file, which is written from start to end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.kept_back = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        # The place of the checksum itself, the last bytes, must not be hashed: they stay here until more comes.
        whole = self.kept_back + bytes(data)
        self.kept_back, sure = whole[-_DIGEST_BYTES:], whole[:-_DIGEST_BYTES]
        self.digest.update(sure)
        self._file.write(sure)
        return len(data)


def pack(contents: Contents, file: BinaryIO) -> None:
    """Write `contents` to `file` as an archive that ends in its checksum."""
    hashing = _Hashing(file)
    with zipfile.ZipFile(hashing, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:  # pyright: ignore[reportArgumentType]
        # First, so that the order of everything else is known from it.
        arrays = {name: _native(array) for name, array in contents.arrays.items()}
        header = {"format": _FORMAT, "version": _VERSION, "state": contents.state, "arrays": list(arrays)}
        text = json.dumps(header).encode()
        _enter(archive, _HEADER, np.frombuffer(text, np.uint8))
        for name, array in arrays.items():
            _enter(archive, name, array)
        archive.comment = b"0" * _DIGEST_BYTES
    file.write(hashing.digest.hexdigest().encode())


def _enter(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    entry = zipfile.ZipInfo(f"{name}.npy")  # its time is a constant, so that equal contents are equal files
    with archive.open(entry, "w", force_zip64=True) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


def _native(array: np.ndarray) -> np.ndarray:
    # bfloat16 and its like are no types of numpy; float32 holds their values exactly.
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def unpack(file: BinaryIO) -> Contents:
    """What `pack` wrote to the seekable `file`.

    Raises:
        CheckpointError: it was not written by `pack`, or has changed since.
    """
    _check(file)
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        header = json.loads(archive[_HEADER].tobytes()) if _HEADER in archive.files else {}
        if header.get("format") != _FORMAT:
            raise CheckpointError("it is an archive of something else")
        if header["version"] > _VERSION:
            raise CheckpointError(f"its format has the version {header['version']}; this release knows {_VERSION}")
        return Contents(header["state"], {name: archive[name] for name in header["arrays"]})


def _check(file: BinaryIO) -> None:
    size = file.seek(0, io.SEEK_END)
    digest = hashlib.sha256()
    file.seek(0)
    left = size - _DIGEST_BYTES
    while left > 0:
        chunk = file.read(min(_CHUNK_BYTES, left))
        if not chunk:
            break
        digest.update(chunk)
        left -= len(chunk)
    if size <= _DIGEST_BYTES or file.read() != digest.hexdigest().encode():
        raise CheckpointError("its checksum is wrong: it is incomplete, altered, or no checkpoint")


def describe_difference(
    saved: Sequence[tuple[str, Sequence[int]]], present: Sequence[tuple[str, Sequence[int]]]
) -> str | None:
    """The first way in which variables that were saved are not those that are present, or None.

    Args:
        saved: Path and shape of each, in order.
        present: The same of the variables to restore into. Numbers that Keras puts behind names do not count, since
            they depend on what else the program has made.
    """
    for place, (theirs, mine) in enumerate(zip(saved, present, strict=False)):
        if _plain(theirs[0]) != _plain(mine[0]) or list(theirs[1]) != list(mine[1]):
            return f"variable {place} is {_said(mine)} here and {_said(theirs)} in the file"
    if len(saved) == len(present):
        return None
    more, where = (saved, "the file") if len(saved) > len(present) else (present, "this program")
    first = more[min(len(saved), len(present))]
    return f"only {where} has {_said(first)} ({len(saved)} variables in the file, {len(present)} here)"


def _plain(path: str) -> list[str]:
    return [re.sub(r"_\d+(?=_|$)", "", part) for part in path.split("/")]


def _said(variable: tuple[str, Sequence[int]]) -> str:
    return f"{variable[0]!r} of shape {tuple(variable[1])}"
