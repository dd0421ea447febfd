# SPDX-License-Identifier: Apache-2.0
"""What is said of a replica that failed."""

from __future__ import annotations

import signal

_HEADER = "Traceback (most recent call last):"
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_LAST_LINES = 20


def exit_code(returncode: int) -> int:
    """The exit code that stands for a child's return code: 128 + n for signal n, as shells have it."""
    return returncode if returncode >= 0 else 128 - returncode


def describe(returncode: int) -> str:
    """How a process ended, for people.

    >>> describe(3)
    'ended with exit code 3'
    >>> describe(-9)
    'was killed by SIGKILL (exit code 137; often for want of memory)'
    """
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = "; often for want of memory" if -returncode == signal.SIGKILL else ""
    return f"was killed by {name} (exit code {exit_code(returncode)}{hint})"


def last_words(tail: bytes) -> str:
    """The last traceback in what a process wrote to stderr, chained ones with it, or else its last lines."""
    text = tail.decode(errors="replace").rstrip()
    start = text.rfind(_HEADER)
    if start < 0:
        return "\n".join(text.splitlines()[-_LAST_LINES:])
    while text[:start].rstrip().endswith(_CHAINS):
        earlier = text.rfind(_HEADER, 0, start)
        if earlier < 0:
            break
        start = earlier
    return text[start:]
