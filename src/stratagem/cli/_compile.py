# SPDX-License-Identifier: Apache-2.0
"""`stratagem compile`: what a script's training step needs on a TPU that is not there."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stratagem import launch
from stratagem._core import env
from stratagem._core.tpu_slice import Slice
from stratagem.cli import _run
from stratagem.cluster_resolver._tpu_hardware import NO_TPU_HERE
from stratagem.engines.compiled_step import CompiledStep
from stratagem.errors import ArgumentError, LaunchError

_DOES_NOT_FIT = 1

# The program's own words are not to drown in those of libraries.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", **NO_TPU_HERE}


def compile_step(program: str, arguments: Sequence[str], *, topology: str, module: bool, as_json: bool) -> int:
    """Run `program` up to its first training step, compile that, and print what it needs.

    Args:
        program: The script, or a module's name.
        arguments: Its arguments.
        topology: What to compile for.
        module: Whether the program is a module's name.
        as_json: Whether to print one JSON object; what the program prints then goes to stderr.

    Returns:
        0 if the step fits into a device's memory, 1 if it does not; else the exit code of the program.

    Raises:
        ArgumentError: there is no such topology, or the environment asks for another backend.
        LaunchError: there is no such program, or it ended without a training step.
    """
    tpu_slice = Slice.parse(topology)
    command = _run.command_of(program, module=module)
    environ = env.inherited()
    if environ.get(env.KERAS_BACKEND) not in (None, "", "jax"):
        raise ArgumentError(
            f"{env.KERAS_BACKEND}={environ[env.KERAS_BACKEND]}, but TPUs need jax",
            fix=f"unset {env.KERAS_BACKEND}, or set it to jax",
        )
    with tempfile.TemporaryDirectory(prefix="stratagem-compile-") as folder:
        report = Path(folder, "report.json")
        plan = launch.plan(
            [sys.executable, *command, *arguments],
            # As many devices as the slice has, so that the script sees its number of replicas.
            launch.place(replicas=None, cpu_devices=tpu_slice.num_devices, backend="jax", environ=environ, gpus=0),
            variables={
                **{name: value for name, value in _QUIET.items() if not environ.get(name)},
                "JAX_PLATFORMS": "cpu",  # whatever the machine has: nothing is computed
                env.KERAS_BACKEND: "jax",
                env.COMPILE_FOR: tpu_slice.name,
                env.COMPILE_REPORT: str(report),
            },
            environ=environ,
            cores=launch.num_cores(),
        )
        code = _supervised(plan, environ, quiet=as_json)
        if code:
            return code
        step = _read(report, program)
    print(step.to_json() if as_json else step)
    return 0 if step.fits else _DOES_NOT_FIT


def _supervised(plan: launch.Plan, environ: Mapping[str, str], *, quiet: bool) -> int:
    with _stdout_on_stderr() if quiet else contextlib.nullcontext():
        return launch.supervise(plan, environ)


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _read(report: Path, program: str) -> CompiledStep:
    if not report.exists():
        raise LaunchError(
            f"{program} ended without a training step of a model that was made under a strategy: nothing is compiled",
            fix="make the model inside `with strategy.scope():` and train it with fit or train_on_batch; for a loop of "
            'your own, call strategy.compile_for("v5e:2x4", model, batch)',
        )
    return CompiledStep.from_json(report.read_text())
