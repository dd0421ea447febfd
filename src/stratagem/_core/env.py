# SPDX-License-Identifier: Apache-2.0
"""The environment variables that Stratagem reads; `launch` writes them, nothing else reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratagem.errors import ArgumentError

RANK = "STRATAGEM_RANK"
WORLD_SIZE = "STRATAGEM_WORLD_SIZE"
JOB_DIR = "STRATAGEM_JOB_DIR"
CPU_DEVICES = "STRATAGEM_CPU_DEVICES"
REPLICAS = "STRATAGEM_REPLICAS"
COLLECTIVE_TIMEOUT_SECONDS = "STRATAGEM_COLLECTIVE_TIMEOUT_SECONDS"
FAILURE_TIMEOUT_SECONDS = "STRATAGEM_FAILURE_TIMEOUT_SECONDS"
FAST_PATHS = "STRATAGEM_FAST_PATHS"
TRANSPORT = "STRATAGEM_TRANSPORT"
COMPILE_FOR = "STRATAGEM_COMPILE_FOR"
COMPILE_REPORT = "STRATAGEM_COMPILE_REPORT"
KERAS_BACKEND = "KERAS_BACKEND"
TF_CONFIG = "TF_CONFIG"

DEFAULT_COLLECTIVE_TIMEOUT_SECONDS = 300.0
DEFAULT_FAILURE_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """This process's place in a job of `world_size` processes on one host.

    Attributes:
        rank: This process's number, 0 .. world_size - 1. With the torch engine it is the replica id.
        world_size: How many processes the job has.
        directory: A folder that all processes of the job see; the rendezvous files are in it.
    """

    rank: int
    world_size: int
    directory: Path

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ArgumentError(
                f"{RANK}={self.rank} does not lie in 0..{self.world_size - 1} ({WORLD_SIZE}={self.world_size})",
                fix=f"set both, or neither and use: stratagem run --replicas {max(1, self.world_size)}",
            )


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What `stratagem compile` asks of the program that it starts.

    Attributes:
        topology: Compile the first training step for this, and run none.
        report: The file that takes the result.
    """

    topology: str
    report: Path


def inherited() -> Mapping[str, str]:
    """All variables of this process, for those that it starts."""
    return os.environ


def job(environ: Mapping[str, str] | None = None) -> Job | None:
    """The job that a launcher put this process into, or None if none did."""
    environ = os.environ if environ is None else environ
    rank = _integer(environ, RANK)
    world_size = _integer(environ, WORLD_SIZE)
    directory = environ.get(JOB_DIR)
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None or not directory:
        raise ArgumentError(
            f"only some of {RANK}, {WORLD_SIZE} and {JOB_DIR} are set",
            fix="unset them all and start the script with: stratagem run script.py",
        )
    return Job(rank=rank, world_size=world_size, directory=Path(directory))


def cpu_devices(environ: Mapping[str, str] | None = None) -> int | None:
    """How many logical CPU devices were asked for, or None if the variable is not set."""
    return _positive(os.environ if environ is None else environ, CPU_DEVICES)


def xla_cpu_devices() -> int | None:
    """How many CPU devices the user's XLA_FLAGS ask for, or None if they do not say."""
    found = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else None


def replicas() -> int | None:
    """How many replicas `stratagem run --replicas` asked for, or None if the variable is not set."""
    return _positive(os.environ, REPLICAS)


def collective_timeout_seconds() -> float:
    """How long a replica waits for the others in one collective before it raises."""
    return _seconds(COLLECTIVE_TIMEOUT_SECONDS, DEFAULT_COLLECTIVE_TIMEOUT_SECONDS)


def failure_timeout_seconds(environ: Mapping[str, str] | None = None) -> float:
    """So long after a process has died, frozen or lost its network all others have ended."""
    return _seconds(FAILURE_TIMEOUT_SECONDS, DEFAULT_FAILURE_TIMEOUT_SECONDS, environ)


def fast_paths() -> bool:
    """Whether the faster, numerically equal kernels may stand in for Keras's own (on unless set to 0)."""
    return _flag(FAST_PATHS, default=True)


def transport() -> str:
    """Which transport carries collectives: "auto", "shared_memory" or "process_group"."""
    text = os.environ.get(TRANSPORT, "") or "auto"
    if text not in ("auto", "shared_memory", "process_group"):
        raise ArgumentError(
            f"{TRANSPORT}={text!r} is not one of auto, shared_memory, process_group", fix=f"unset {TRANSPORT}"
        )
    return text


def compile_request() -> CompileRequest | None:
    """What `stratagem compile` asks of this process, or None if it did not start it."""
    topology, report = os.environ.get(COMPILE_FOR), os.environ.get(COMPILE_REPORT)
    if not topology or not report:
        return None
    return CompileRequest(topology=topology, report=Path(report))


def keras_backend() -> str | None:
    """The backend that KERAS_BACKEND names, or None if it is not set."""
    return os.environ.get(KERAS_BACKEND) or None


def tf_config() -> str | None:
    """The text of TF_CONFIG, or None if it is not set."""
    return os.environ.get(TF_CONFIG) or None


def _flag(name: str, *, default: bool) -> bool:
    text = os.environ.get(name, "")
    if text == "":
        return default
    if text not in ("0", "1"):
        raise ArgumentError(f"{name}={text!r} is neither 0 nor 1", fix=f"unset it, or set {name}=0 or {name}=1")
    return text == "1"


def _seconds(name: str, default: float, environ: Mapping[str, str] | None = None) -> float:
    text = (os.environ if environ is None else environ).get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ArgumentError(
            f"{name}={text!r} is not a positive number of seconds", fix=f"unset it, or set {name}={default:g}"
        )
    return seconds


def _positive(environ: Mapping[str, str], name: str) -> int | None:
    value = _integer(environ, name)
    if value is not None and value < 1:
        raise ArgumentError(f"{name}={value} is not a positive number", fix=f"unset it, or set {name}=1 or more")
    return value


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{name}={text!r} is not a whole number", fix=f"unset it, or set {name}=0") from None
