# SPDX-License-Identifier: Apache-2.0
"""One check and what came of it, and all of them together."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LOCAL_CODES", "NAMES", "Check", "Diagnosis", "Verdict", "failed", "ok", "skipped", "warning"]

# Codes are what people search for: one is never given to another check.
NAMES = {
    "D01": "versions",
    "D02": "backend",
    "D03": "devices",
    "D04": "threads",
    "D05": "shared memory",
    "D06": "cluster",
    "D10": "names resolve",
    "D11": "own address",
    "D12": "own port",
    "D13": "own host name",
    "D14": "workers present",
    "D15": "tasks distinct",
    "D16": "same cluster",
    "D17": "ports reachable",
    "D18": "versions equal",
    "D19": "clocks",
    "D20": "shared folder",
    "D21": "all-reduce",
}
LOCAL_CODES = tuple(code for code in NAMES if code < "D10")


class Verdict(enum.Enum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check found.

    Attributes:
        code: Its code, such as "D17".
        verdict: Whether all is well.
        text: What was found, in a sentence.
        fix: What to do about it, or None.
    """

    code: str
    verdict: Verdict
    text: str
    fix: str | None = None

    @property
    def name(self) -> str:
        """What is checked, in two words."""
        return NAMES[self.code]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All checks of one run.

    Attributes:
        task: The task whose doctor this is, or None without a cluster.
        checks: The checks by their codes.
    """

    task: str | None
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether no check failed.

        >>> Diagnosis(task=None, checks=(ok("D05", "all is well"), skipped("D20", "no --shared"))).healthy
        True
        """
        return all(check.verdict is not Verdict.FAILED for check in self.checks)


def ok(code: str, text: str) -> Check:
    """A check that found nothing wrong."""
    return Check(code=code, verdict=Verdict.OK, text=text)


def skipped(code: str, text: str) -> Check:
    """A check that could not be made, and why."""
    return Check(code=code, verdict=Verdict.SKIPPED, text=text)


def warning(code: str, text: str | Sequence[str], fix: str) -> Check:
    """A check that found what may be meant, or may go wrong."""
    return Check(code=code, verdict=Verdict.WARNING, text=_joined(text), fix=fix)


def failed(code: str, text: str | Sequence[str], fix: str) -> Check:
    """A check that found what makes a job fail."""
    return Check(code=code, verdict=Verdict.FAILED, text=_joined(text), fix=fix)


def _joined(text: str | Sequence[str]) -> str:
    return text if isinstance(text, str) else "; ".join(text)
