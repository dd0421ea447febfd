# SPDX-License-Identifier: Apache-2.0
"""`stratagem run`: from the options to a plan, and on to its end."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratagem import launch
from stratagem._core import env
from stratagem.errors import ArgumentError, LaunchError


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `stratagem run`; None is what the user left out.

    Attributes:
        replicas: How many replicas.
        cpu_devices: How many logical CPU devices; with workers each has as many.
        processes: How many processes hold the replicas.
        workers: How many workers of a cluster to start here.
        hosts: Where the workers of a cluster run, "host" or "host:port" each.
        task_index: Which of `hosts` this one is.
        max_restarts: How many times to begin again after a failure.
        failure_timeout: So many seconds after a process is lost all others have ended.
        log_dir: Where each process gets a file with its output.
        backend: The Keras backend.
        module: Whether the program is a module's name.
        dry_run: Whether to show the plan only.
    """

    replicas: int | None = None
    cpu_devices: int | None = None
    processes: int | None = None
    workers: int | None = None
    hosts: str | None = None
    task_index: int | None = None
    max_restarts: int = 0
    failure_timeout: float | None = None
    log_dir: Path | None = None
    backend: str | None = None
    module: bool = False
    dry_run: bool = False


def run(program: str, arguments: Sequence[str], *, options: Options) -> int:
    """Run `program` on several devices or workers and return the exit code.

    Raises:
        LaunchError: there is no such program, or the folder for the output can't be made.
        BackendError: KERAS_BACKEND names a backend that Stratagem does not drive.
        DeviceError: more replicas than devices, or devices that can't be divided among the processes.
        ArgumentError: options that don't go together, or a number of processes that does not fit the backend.
    """
    _check_together(options)
    plan = _plan([sys.executable, *command_of(program, module=options.module), *arguments], options)
    if options.dry_run:
        print(plan)
        return 0
    if options.log_dir is not None:
        _make(options.log_dir)
    return launch.supervise(plan, env.inherited(), max_restarts=options.max_restarts, log_dir=options.log_dir)


def _plan(argv: Sequence[str], options: Options) -> launch.Plan:
    environ = env.inherited()
    backend = options.backend or _backend()
    variables = {env.KERAS_BACKEND: backend}
    if options.failure_timeout is not None:
        variables[env.FAILURE_TIMEOUT_SECONDS] = f"{options.failure_timeout:g}"
    cluster: dict[str, Any] = {"cpu_devices": options.cpu_devices, "variables": variables, "environ": environ}
    if options.workers is not None:
        ports = launch.free_ports(options.workers)
        return launch.plan_workers(argv, ports, **cluster, cores=launch.num_cores(), gpus=launch.num_gpus(environ))
    if options.hosts is not None:
        hosts = [host.strip() for host in options.hosts.split(",") if host.strip()]
        return launch.plan_task(argv, hosts, options.task_index or 0, **cluster)
    placement = launch.place(
        replicas=options.replicas,
        cpu_devices=options.cpu_devices,
        backend=backend,
        environ=environ,
        gpus=launch.num_gpus(environ),
        processes=options.processes,
    )
    return launch.plan(argv, placement, variables=variables, environ=environ, cores=launch.num_cores())


def _check_together(options: Options) -> None:
    ways = {"--workers": options.workers, "--hosts": options.hosts}
    here = {"--replicas": options.replicas, "--processes": options.processes}
    given = [name for name, value in {**ways, **here}.items() if value is not None]
    if len(given) > 1 and set(given) & ways.keys():
        raise ArgumentError(
            f"{' and '.join(given)} do not go together",
            fix="--workers 3 for workers on this host, or --hosts a,b --task-index 0 on each host; --cpu-devices says "
            "how many replicas a worker has, where there are no GPUs",
        )
    if (options.hosts is None) != (options.task_index is None):
        raise ArgumentError(
            "--hosts and --task-index are given together or not at all", fix="--hosts host-a,host-b --task-index 0"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"the folder {str(folder)!r} for the output can't be made: {error.strerror}", fix="--log-dir another-folder"
        ) from error


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
