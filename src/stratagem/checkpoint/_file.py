# SPDX-License-Identifier: Apache-2.0
"""One checkpoint file: there whole, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from pathlib import Path

from stratagem.checkpoint._container import Contents, pack, unpack
from stratagem.errors import CheckpointError

__all__ = ["PARTIAL", "load", "read_file", "write_file"]

PARTIAL = ".partial"


def write_file(path: Path, contents: Contents) -> None:
    """Write `path` so that at any time either the old file or the whole new one is there.

    Raises:
        CheckpointError: it can't be written; what was there is untouched.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            pack(contents, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _keep_entry(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} can't be written: {error.strerror or error}",
            fix="free space, or give a folder that can be written to; what was saved before is untouched",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _keep_entry(folder: Path) -> None:
    # A renaming is only safe from a crash of the machine when the folder has been written too.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path) -> Contents:
    """What `write_file` wrote.

    Raises:
        CheckpointError: it can't be read, is incomplete or altered, or no checkpoint.
    """
    try:
        return load(path.read_bytes())
    except OSError as error:
        why = error.problem if isinstance(error, CheckpointError) else error.strerror or str(error)
        raise CheckpointError(
            f"the checkpoint {path} can't be used: {why}", fix="restore an older one, or start anew without it"
        ) from error


def load(data: bytes) -> Contents:
    """The contents of a file with the bytes `data`.

    Raises:
        CheckpointError: they are incomplete, altered or something else.
    """
    try:
        return unpack(io.BytesIO(data))
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        # Its checksum was right, so somebody wrote it that way.
        raise CheckpointError(f"it is no checkpoint of ours ({error})") from error
