# SPDX-License-Identifier: Apache-2.0
"""`stratagem doctor`: what the doctor found, on one screen or as JSON."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stratagem import doctor
from stratagem.doctor import Check, Diagnosis, Verdict

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red", Verdict.SKIPPED: "dim"}


def examine(request: doctor.Request, *, as_json: bool) -> int:
    """Make all checks, print them, and return the exit code: 0 where none failed, else 1.

    Raises:
        ArgumentError: the workers that were named can't be those of a cluster.
    """
    # So that the programs it has started, and its file in a shared folder, go with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    diagnosis = doctor.examine(request, say=lambda line: print(f"stratagem: {line}", file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps(to_json(diagnosis)))
    elif sys.stdout.isatty():
        _print_table(diagnosis)
    else:
        for line in plain_lines(diagnosis):
            print(line)
    return 0 if diagnosis.healthy else 1


def to_json(diagnosis: Diagnosis) -> dict[str, object]:
    """The diagnosis as one object."""
    return {
        "healthy": diagnosis.healthy,
        "task": diagnosis.task,
        "checks": [
            {
                "code": check.code,
                "name": check.name,
                "verdict": check.verdict.value,
                "text": check.text,
                "fix": check.fix,
            }
            for check in diagnosis.checks
        ],
    }


def plain_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The diagnosis for a file or an issue: a line for each check, and one for each fix."""
    for code, name, check in _rows(diagnosis):
        yield f"{code:<8} {check.verdict.value:<8} {name:<16} {_printable(check.text)}"
        if check.fix:
            yield f"{'':<34} fix: {_printable(check.fix)}"
    yield _summary(diagnosis)


def _print_table(diagnosis: Diagnosis) -> None:
    table = Table("", "check", "verdict", "what was found", title=_summary(diagnosis))
    for code, name, check in _rows(diagnosis):
        text = Text(_printable(check.text))
        if check.fix:
            text.append(f"\nfix: {_printable(check.fix)}", style="bold")
        table.add_row(code, name, Text(check.verdict.value, style=_STYLES[check.verdict]), text)
    Console(file=sys.stdout).print(table)


def _rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str, Check]]:
    """Code, name and check of each row; what was skipped for one reason shares a row."""
    for _, group in itertools.groupby(diagnosis.checks, lambda check: (check.verdict is Verdict.SKIPPED, check.text)):
        checks = list(group)
        if len(checks) == 1:
            yield checks[0].code, checks[0].name, checks[0]
        else:
            yield f"{checks[0].code}-{checks[-1].code}", f"{len(checks)} checks", checks[0]


def _summary(diagnosis: Diagnosis) -> str:
    count = sum(check.verdict is Verdict.FAILED for check in diagnosis.checks)
    where = f"stratagem doctor, {diagnosis.task}" if diagnosis.task else "stratagem doctor"
    return f"{where}: {'nothing failed' if not count else f'{count} failed'}"


def _printable(text: str) -> str:
    """The text without control characters: some of it came over the network."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
