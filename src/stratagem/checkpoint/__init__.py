# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files and their safety: written whole or not at all, and checked when they are read. No framework."""

from __future__ import annotations

from stratagem.checkpoint._container import Contents, describe_difference
from stratagem.checkpoint._file import load, read_file, write_file
from stratagem.checkpoint._folder import Folder
from stratagem.errors import CheckpointError, CheckpointMismatchError

__all__ = [
    "CheckpointError",
    "CheckpointMismatchError",
    "Contents",
    "Folder",
    "describe_difference",
    "load",
    "read_file",
    "write_file",
]
