# SPDX-License-Identifier: Apache-2.0
"""Jobs of real processes that may be broken: made in a moment, by forking a process that has torch and keras loaded.

Replicas that have lost each other can't go on, so a test of how they do needs a job of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stratagem._core import env
from stratagem.errors import StratagemError
from stratagem.testing import ReplicaPool

POLL_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one replica.

    Attributes:
        value: What it returned.
        error: What it raised.
        text: The traceback of that.
        signal: What killed it.
        seconds: How long it ran.
    """

    value: Any = None
    error: BaseException | None = None
    text: str = ""
    signal: int | None = None
    seconds: float = 0.0


class RunJob(Protocol):
    """Runs `program(rank)` on replicas; what became of each."""

    def __call__(
        self, program: Callable[[int], Any], replicas: int, transport: str, timeout_seconds: float = 20.0
    ) -> list[Outcome]: ...


@contextlib.contextmanager
def nursery() -> Iterator[RunJob]:
    """A process that makes jobs of copies of itself.

    Their collectives have `timeout_seconds`, they themselves twice as long and 10 seconds more.
    """
    with ReplicaPool(replicas=1, env={"OMP_NUM_THREADS": "1"}) as pool:
        pool.run(load)

        def run(
            program: Callable[[int], Any], replicas: int, transport: str, timeout_seconds: float = 20.0
        ) -> list[Outcome]:
            variables = {env.TRANSPORT: transport, env.COLLECTIVE_TIMEOUT_SECONDS: str(timeout_seconds)}
            return pool.run(run_job, program, replicas, variables, 2 * timeout_seconds + 10)[0]

        yield run


def load() -> None:
    """Load what replicas need; to be called in the process that is to be forked."""
    import torch

    import stratagem.engines.torch
    import stratagem.keras_fit._torch._hooks  # noqa: F401

    assert torch.get_num_threads() == 1, "a pool of threads would not survive the fork"


def run_job(
    program: Callable[[int], Any], replicas: int, variables: Mapping[str, str], limit_seconds: float
) -> list[Outcome]:
    """Run `program(rank)` in new processes that form a job; to be called where `load` was called before.

    A stopped replica is killed once all others have ended. Whatever still runs after `limit_seconds` is killed, too.
    """
    folder = Path(tempfile.mkdtemp(prefix="stratagem-test-"))
    try:
        ranks = {
            _fork(program, env.Job(rank=rank, world_size=replicas, directory=folder), variables): rank
            for rank in range(replicas)
        }
        statuses = _wait(ranks, limit_seconds)
        return [_outcome(folder, rank, statuses[rank]) for rank in range(replicas)]
    finally:
        shutil.rmtree(folder)


def _fork(program: Callable[[int], Any], job: env.Job, variables: Mapping[str, str]) -> int:
    """Start a replica; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = _be_replica(program, job, variables)
    except BaseException:  # noqa: BLE001 - nothing may go on in a copy of the test's process
        traceback.print_exc()
    finally:
        os._exit(code)


def _be_replica(program: Callable[[int], Any], job: env.Job, variables: Mapping[str, str]) -> int:
    """Run the program and end as the interpreter does; the exit code."""
    os.environ.update(
        {
            env.RANK: str(job.rank),
            env.WORLD_SIZE: str(job.world_size),
            env.JOB_DIR: str(job.directory),
            env.CPU_DEVICES: str(job.world_size),
            env.REPLICAS: str(job.world_size),
            **variables,
        }
    )
    code, started = 0, time.monotonic()
    try:
        value = program(job.rank)
        outcome = Outcome(value=value, seconds=time.monotonic() - started)
    except BaseException as error:  # noqa: BLE001 - the test gets it
        sys.last_value = error
        known = error if isinstance(error, StratagemError) else RuntimeError(repr(error))
        outcome = Outcome(error=known, text=traceback.format_exc(), seconds=time.monotonic() - started)
        code = 1
    _outcome_path(job.directory, job.rank).write_bytes(pickle.dumps(outcome))
    atexit._run_exitfuncs()
    return code


def _wait(ranks: Mapping[int, int], limit_seconds: float) -> dict[int, int]:
    """The wait status of each rank, once all have ended."""
    deadline = time.monotonic() + limit_seconds
    running, stopped = set(ranks), set[int]()
    statuses: dict[int, int] = {}
    while running:
        for pid in sorted(running):
            if running == stopped or time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                stopped.add(pid)
            elif found:
                statuses[ranks[pid]] = status
                running.remove(pid)
                stopped.discard(pid)
        time.sleep(POLL_SECONDS)
    return statuses


def _outcome(folder: Path, rank: int, status: int) -> Outcome:
    if os.WIFSIGNALED(status):
        return Outcome(signal=os.WTERMSIG(status))
    return pickle.loads(_outcome_path(folder, rank).read_bytes())


def _outcome_path(folder: Path, rank: int) -> Path:
    return folder / f"outcome-{rank}"
