# SPDX-License-Identifier: Apache-2.0
"""How a plain `python script.py` gets its replicas: its first process turns into their launcher."""

from __future__ import annotations

import multiprocessing.process
import os
import sys
from typing import NoReturn

from stratagem._core import env
from stratagem.errors import LaunchError
from stratagem.launch import _command, _hardware
from stratagem.launch._plan import Placement, plan
from stratagem.launch._supervise import supervise


def become_launcher(num_processes: int, *, on_cpu: bool | None = None) -> NoReturn:
    """Run this program again, `num_processes` times, as one job; end this process with the job's exit code.

    Nothing of the program runs in this process any more: no `finally`, no `atexit`.

    Args:
        num_processes: How many processes the job needs.
        on_cpu: Whether they compute on CPU cores; None to take it from whether there are GPUs.

    Raises:
        LaunchError: there is no command line to run again (a notebook, a REPL), or this process is in a job already.
    """
    _refuse_in_a_job(num_processes)
    program = _program(num_processes)
    main_file = getattr(sys.modules["__main__"], "__file__", None)
    placement = Placement(
        num_processes=num_processes,
        num_replicas=None,
        cpu_devices=None,
        on_cpu=_hardware.num_gpus(os.environ) < num_processes if on_cpu is None else on_cpu,
    )
    siblings = plan(
        [sys.executable, *sys.orig_argv[1:]],
        placement,
        environ=os.environ,
        cores=_hardware.num_cores(),
        directory=_command.start_directory(program.script, main_file),
    )
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(supervise(siblings, os.environ))


def _refuse_in_a_job(num_processes: int) -> None:
    job = env.job()
    if job is not None:
        raise LaunchError(
            f"a strategy needs {num_processes} processes, but the job was started with {job.world_size}",
            fix=f"start it with: stratagem run --replicas {num_processes} script.py",
        )


def _program(num_processes: int) -> _command.Program:
    program = _command.program(sys.orig_argv)
    if multiprocessing.process.parent_process() is not None:
        place = "a process of multiprocessing"
    elif program.kind == "none" or _interactive():
        place = "a notebook or an interactive Python"
    else:
        return program
    raise LaunchError(
        f"{num_processes} replicas need {num_processes} processes, and {place} can't be started again as such",
        fix=f"put the training into a function and call: stratagem.launch(fn, replicas={num_processes})",
    )


def _interactive() -> bool:
    # IPython's kernels are started with -m, so the command line does not tell.
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
