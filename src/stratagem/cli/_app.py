# SPDX-License-Identifier: Apache-2.0
"""The commands and their options."""

from __future__ import annotations

import enum
import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated

import typer

from stratagem.cli import _compile, _devices, _doctor, _run
from stratagem.doctor import Request
from stratagem.errors import StratagemError

_USAGE_ERROR = 2

app = typer.Typer(
    name="stratagem",
    help="Train Keras models on several devices.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # an error stays one line, which can be searched for
)


class Backend(enum.Enum):
    """The Keras backends that Stratagem drives."""

    TORCH = "torch"
    JAX = "jax"


def main() -> None:
    """Run the command line; what the user got wrong is said in a sentence, with exit code 2."""
    try:
        app()
    except StratagemError as error:
        print(f"stratagem: {error}", file=sys.stderr)
        sys.exit(_USAGE_ERROR)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"stratagem {importlib.metadata.version('stratagem')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train Keras models on several devices."""


@app.command(
    # What follows the program is the program's own, options that have the same names as ours too.
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def run(
    program: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script, or with -m the module, to run.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Passed on untouched.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="How many replicas; by default one a GPU.")] = None,
    cpu_devices: Annotated[
        int | None, typer.Option(min=1, help="Offer this many logical CPU devices and compute on them.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="With jax: how many processes share the devices; by default one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Start this many workers of a cluster here, with a TF_CONFIG each.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(help="The hosts of a cluster, as host-a,host-b:2222; start this one's worker.")
    ] = None,
    task_index: Annotated[int | None, typer.Option(min=0, help="Which of --hosts this one is, from 0.")] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="Begin again so many times after a process failed.")] = 0,
    failure_timeout: Annotated[
        float | None,
        typer.Option(min=1.0, help="Seconds after which all have ended when one died or froze; by default 60."),
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="A folder where each process gets a file with its output.")
    ] = None,
    backend: Annotated[Backend | None, typer.Option(help="Set KERAS_BACKEND.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would start, and start nothing.")] = False,
) -> None:
    """Run a script on several devices of this machine, or as a worker of several machines."""
    code = _run.run(
        program,
        arguments or [],
        options=_run.Options(
            replicas=replicas,
            cpu_devices=cpu_devices,
            processes=processes,
            workers=workers,
            hosts=hosts,
            task_index=task_index,
            max_restarts=max_restarts,
            failure_timeout=failure_timeout,
            log_dir=log_dir,
            backend=None if backend is None else backend.value,
            module=module,
            dry_run=dry_run,
        ),
    )
    raise typer.Exit(code)


@app.command(
    "compile",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def compile_step(
    program: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script, or with -m the module, to run.")],
    topology: Annotated[str, typer.Option(help="The TPU slice to compile for, such as v5e:2x4.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Passed on untouched.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compile a script's training step for a TPU that is not there, and say what it needs."""
    raise typer.Exit(_compile.compile_step(program, arguments or [], topology=topology, module=module, as_json=as_json))


@app.command()
def devices(
    backend: Annotated[Backend | None, typer.Option(help="Set KERAS_BACKEND.")] = None,
) -> None:
    """List the devices that a strategy can use here."""
    _devices.show(None if backend is None else backend.value)


@app.command()
def doctor(
    workers: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="All workers, in order; by default those of TF_CONFIG."),
    ] = None,
    task_index: Annotated[
        int | None, typer.Option(min=0, help="Which of --workers this is; by default the one with this host's address.")
    ] = None,
    backend: Annotated[Backend | None, typer.Option(help="The backend to check, as in KERAS_BACKEND.")] = None,
    shared: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A folder that all workers are to share.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the other workers.")] = 30.0,
) -> None:
    """Check this host, and with --workers or TF_CONFIG the cluster: run it on all workers at about the same time.

    The exit code is 0 if no check failed, 1 if one did, and 2 if the options can't be used.
    """
    request = Request(
        workers=workers,
        task_index=task_index,
        backend=None if backend is None else backend.value,
        shared=shared,
        timeout_seconds=timeout,
    )
    raise typer.Exit(_doctor.examine(request, as_json=as_json))
