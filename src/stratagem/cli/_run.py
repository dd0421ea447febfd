# SPDX-License-Identifier: Apache-2.0
"""`stratagem run`: from the options to a plan, and on to its end."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from stratagem import launch
from stratagem._core import env
from stratagem.errors import LaunchError


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `stratagem run`; None is what the user left out.

    Attributes:
        replicas: How many replicas.
        cpu_devices: How many logical CPU devices.
        processes: How many processes hold the replicas.
        backend: The Keras backend.
        module: Whether the program is a module's name.
        dry_run: Whether to show the plan only.
    """

    replicas: int | None = None
    cpu_devices: int | None = None
    processes: int | None = None
    backend: str | None = None
    module: bool = False
    dry_run: bool = False


def run(program: str, arguments: Sequence[str], *, options: Options) -> int:
    """Run `program` on several devices and return the exit code.

    Raises:
        LaunchError: there is no such program.
        BackendError: KERAS_BACKEND names a backend that Stratagem does not drive.
        DeviceError: more replicas than devices, or devices that can't be divided among the processes.
        ArgumentError: a number of processes that does not fit the backend.
    """
    command = command_of(program, module=options.module)
    environ = env.inherited()
    backend = options.backend or _backend()
    plan = launch.plan(
        [sys.executable, *command, *arguments],
        launch.place(
            replicas=options.replicas,
            cpu_devices=options.cpu_devices,
            backend=backend,
            environ=environ,
            gpus=launch.num_gpus(environ),
            processes=options.processes,
        ),
        variables={env.KERAS_BACKEND: backend},
        environ=environ,
        cores=launch.num_cores(),
    )
    if options.dry_run:
        print(plan)
        return 0
    return launch.supervise(plan, environ)


def command_of(program: str, *, module: bool) -> list[str]:
    """What Python gets to run a script or a module.

    Raises:
        LaunchError: there is none of that name.
    """
    return _module(program) if module else _script(program)


def _backend() -> str:
    backend = launch.choose_backend(env.inherited())
    if env.keras_backend() is None:
        print(f"stratagem: {env.KERAS_BACKEND} is not set, so the backend is {backend}", file=sys.stderr)
    return backend


def _script(path: str) -> list[str]:
    if not os.path.exists(path):
        raise LaunchError(f"there is no script {path!r} in {os.getcwd()}", fix="check the path")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        raise LaunchError(f"{path!r} is a folder, not a script", fix="name a file in it, such as train.py")
    return [path]


def _module(name: str) -> list[str]:
    # Only the first part is looked up: to find the others would run the package's code here.
    top = name.partition(".")[0]
    known = top in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    if not known:
        raise LaunchError(f"there is no module {top!r}", fix="start in the folder that holds it, or install it")
    return ["-m", name]
