# SPDX-License-Identifier: Apache-2.0
"""The command line that started this Python, so that it can be started again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

_TAKE_A_VALUE = "XW"
_END_THE_OPTIONS = "cm"
_LONG_WITH_VALUE = "--check-hash-based-pycs"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a Python command line runs.

    Attributes:
        kind: "script", "c" (`python -c`), "m" (`python -m`) or "none" (a REPL, or a program read from stdin).
        script: The script's path as it was given, for the kind "script".
    """

    kind: str
    script: str | None = None


def program(argv: Sequence[str]) -> Program:
    """Read a Python command line, as `sys.orig_argv` has it.

    >>> program(["python", "-X", "dev", "train.py", "-m"])
    Program(kind='script', script='train.py')
    >>> program(["python", "-um", "train"]).kind
    'm'
    """
    words = iter(argv[1:])
    for word in words:
        if word == _LONG_WITH_VALUE:
            next(words, None)
        elif word == "-":
            break
        elif not word.startswith("-"):
            return Program(kind="script", script=word)
        elif not word.startswith("--"):
            for position, letter in enumerate(word[1:], start=1):
                if letter in _END_THE_OPTIONS:
                    return Program(kind=letter)
                if letter in _TAKE_A_VALUE:
                    if position == len(word) - 1:
                        next(words, None)
                    break
    return Program(kind="none")


def start_directory(script: str | None, main_file: str | None) -> str | None:
    """The folder that Python was started in, where a relative `script` shows it; the program may have left it since.

    >>> start_directory("examples/train.py", "/home/me/examples/train.py")
    '/home/me'
    """
    if script is None or main_file is None or os.path.isabs(script):
        return None
    tail = os.sep + os.path.normpath(script)
    path = os.path.normpath(main_file)
    return path[: -len(tail)] or os.sep if path.endswith(tail) else None
