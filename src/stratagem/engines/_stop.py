# SPDX-License-Identifier: Apache-2.0
"""How all processes of a job stop at the same step, once one of them was told to."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Alone", "StopAgreement"]


class StopAgreement(Protocol):
    """What a training loop asks after each of its steps."""

    def request(self) -> None:
        """This process was told to stop. Safe in a signal handler."""

    def stop_here(self, step: int) -> bool:
        """Whether to stop now that `step` steps are done: true at the same step on all processes.

        Cheap while nobody was told to.
        """
        ...

    def asked_by(self) -> str:
        """Which processes were told to stop, for people; "" where there is one."""
        ...


class Alone:
    """Of a job of one process."""

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        """This process was told to stop."""
        self._requested = True

    def stop_here(self, step: int) -> bool:
        """Whether it was."""
        del step
        return self._requested

    def asked_by(self) -> str:
        """There is nobody else."""
        return ""
