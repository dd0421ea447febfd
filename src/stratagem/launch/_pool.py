# SPDX-License-Identifier: Apache-2.0
"""Processes that stay alive as one job and run functions that they are sent."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stratagem._core import env as _env
from stratagem.errors import ArgumentError, ArgumentTypeError, ReplicaFailedError
from stratagem.launch import _environment, _hardware, _pickle
from stratagem.launch._crew import Crew
from stratagem.launch._messages import Answer
from stratagem.launch._plan import Plan, place, plan

T = TypeVar("T")


class ReplicaPool:
    """Processes that stay alive as one job and run functions in all of them at once.

    With torch each replica is a process; with jax one process holds all replicas, or `processes` of them as many each.
    Starting a process with a framework and keras takes seconds, so tests share pools. When a function does not fail in
    all processes in the same way, or does not come back, what they know of each other is no longer sure: they are
    ended, and the next `run` starts new ones.

    Args:
        replicas: How many replicas.
        cpu_devices: How many logical CPU devices they see; `replicas` of them where there is no GPU.
        env: More environment variables for the processes.
        backend: "torch" or "jax"; what KERAS_BACKEND names, or the keras loaded here uses, if not given.
        processes: How many processes hold the replicas, with jax.

    Raises:
        ArgumentError: a number is less than 1, or `processes` does not fit the backend.
        DeviceError: more replicas than devices, or replicas that can't be divided among the processes.
        LaunchError: a process could not be started.

    Example:
        >>> with ReplicaPool(replicas=2) as pool:  # doctest: +SKIP
        ...     pool.run(lambda number: number + 1, 3)
        [4, 4]
    """

    def __init__(
        self,
        *,
        replicas: int,
        cpu_devices: int | None = None,
        env: Mapping[str, str] | None = None,
        backend: str | None = None,
        processes: int | None = None,
    ) -> None:
        self._replicas = replicas
        self._environ = {**os.environ, **(env or {})}
        if backend is not None:
            self._environ[_env.KERAS_BACKEND] = backend
        self._plan = worker_plan(replicas, cpu_devices, self._environ, processes)
        self._crew: Crew | None = None
        self._start()

    def __enter__(self) -> ReplicaPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReplicaPool(replicas={self._replicas}, processes={len(self._plan.processes)}, alive={self.alive})"

    @property
    def alive(self) -> bool:
        """Whether its processes run."""
        return self._crew is not None and self._crew.alive

    def run(self, fn: Callable[..., T], *args: object, timeout_seconds: float | None = 120.0) -> list[T]:
        """Call `fn(*args)` in every process, at the same time.

        Args:
            fn: Any function: one of a notebook, a closure or a lambda too.
            args: Its arguments, the same in every process.
            timeout_seconds: After this long the processes are ended; None to wait for as long as it takes.

        Returns:
            The results, one per process, by rank.

        Raises:
            ReplicaFailedError: a process raised, ended, or did not come back in time; the text has its traceback.
            ArgumentError: `timeout_seconds` is not positive.
            ArgumentTypeError: `fn` or an argument can't be sent to another process.
        """
        if timeout_seconds is not None and timeout_seconds <= 0:
            raise ArgumentError(f"timeout_seconds={timeout_seconds} is not positive", fix="timeout_seconds=120")
        request = _request(fn, args)
        if not self.alive:
            self.close()
            self._start()
        assert self._crew is not None
        try:
            answers = self._crew.run(request, timeout_seconds)
        except BaseException:  # Ctrl-C above all
            self._stop(kindly=False)
            raise
        failures = {rank: answer for rank, answer in enumerate(answers) if answer.summary is not None}
        if not failures:
            return [answer.result for answer in answers]
        if any(answer.ended or answer.summary != answers[0].summary for answer in answers):
            self._stop(kindly=False)
        raise _error(failures, self._plan)

    def close(self) -> None:
        """End the processes. Idempotent."""
        self._stop(kindly=True)

    def _start(self) -> None:
        self._crew = Crew(self._plan, self._environ)
        # Before the interpreter tears down what the thread that passes output on needs.
        atexit.register(self.close)

    def _stop(self, *, kindly: bool) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            atexit.unregister(self.close)
            crew.close(kindly=kindly)


def worker_plan(
    replicas: int, cpu_devices: int | None, environ: Mapping[str, str], processes: int | None = None
) -> Plan:
    """What a pool of `replicas` starts."""
    backend = _environment.choose_backend(environ, loaded=_environment.loaded_backend())
    placement = place(
        replicas=replicas,
        cpu_devices=cpu_devices,
        backend=backend,
        environ=environ,
        gpus=_hardware.num_gpus(environ),
        processes=processes,
    )
    return plan(
        [sys.executable, "-m", "stratagem.launch._worker"],
        placement,
        variables={_env.KERAS_BACKEND: backend},
        environ=environ,
        cores=_hardware.num_cores(),
    )


def _request(fn: Callable[..., Any], args: Sequence[object]) -> bytes:
    try:
        call = _pickle.dumps((fn, args))
    except Exception as error:
        raise ArgumentTypeError(
            f"{getattr(fn, '__name__', fn)} or an argument of it can't be sent to another process: {error}",
            fix="make locks, open files and such inside the function",
        ) from error
    return _pickle.dumps((list(dict.fromkeys([*sys.path, *_root(fn)])), call))


def _root(fn: Callable[..., Any]) -> list[str]:
    """The folder to import the module of `fn` from: pytest and others import files that sys.path does not lead to."""
    name = getattr(fn, "__module__", None) or "__main__"
    file: str | None = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or file is None:  # then it is sent whole
        return []
    base = file.removesuffix(".py").removesuffix(os.sep + "__init__")
    tail = os.sep + name.replace(".", os.sep)
    return [base.removesuffix(tail)] if base.endswith(tail) else []


def _error(failures: Mapping[int, Answer], job: Plan) -> ReplicaFailedError:
    """One error for all failures: the first in full, of the others a line each."""
    noun, count = job.noun, len(job.processes)
    first, *others = sorted(failures, key=lambda rank: failures[rank].at_seconds)
    lines = [f"{noun} {first}/{count} failed: {failures[first].summary}", failures[first].text.rstrip()]
    lines += [f"{noun} {rank}/{count} failed as well: {failures[rank].summary}" for rank in others]
    return ReplicaFailedError("\n".join(line for line in lines if line))
