# SPDX-License-Identifier: Apache-2.0
"""The commands and their options."""

from __future__ import annotations

import enum
import importlib.metadata
import sys
from typing import Annotated

import typer

from stratagem.cli import _compile, _devices, _run
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
    backend: Annotated[Backend | None, typer.Option(help="Set KERAS_BACKEND.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would start, and start nothing.")] = False,
) -> None:
    """Run a script on several devices of this machine."""
    code = _run.run(
        program,
        arguments or [],
        options=_run.Options(
            replicas=replicas,
            cpu_devices=cpu_devices,
            processes=processes,
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
def devices() -> None:
    """List the devices that a strategy can use here."""
    _devices.show()
