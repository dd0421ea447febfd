# SPDX-License-Identifier: Apache-2.0
"""The processes that mpirun or mpiexec starts."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem._core import env
from stratagem.cluster_resolver import _variables as variables
from stratagem.cluster_resolver._address import host_and_port, join
from stratagem.cluster_resolver._numbered import NumberedResolver, Tasks
from stratagem.errors import ArgumentError

__all__ = ["MPIClusterResolver", "mpi_ranks"]

_LAUNCHER = "mpirun"
_COORDINATOR = 'MPIClusterResolver(coordinator="host-of-rank-0:2222"), or set MASTER_ADDR and MASTER_PORT'

# Open MPI before version 5 tells where mpirun itself runs: "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"
_MPIRUN = "OMPI_MCA_orte_hnp_uri"
_MPIRUN_IP = re.compile(r"tcp://([^,:;]+)|tcp6://\[?([^],;]+)")
_JOB_NAMES = ("PMIX_NAMESPACE", _MPIRUN, "PMI_JOBID")


@dataclass(frozen=True, kw_only=True)
class _Names:
    """What a family of launchers calls its variables."""

    rank: str
    size: str
    local_rank: str
    local_size: str


_FAMILIES = (
    _Names(  # Open MPI
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Names(  # MVAPICH; before MPICH, whose variables it may set as well
        rank="MV2_COMM_WORLD_RANK",
        size="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Names(  # MPICH and Intel MPI
        rank="PMI_RANK", size="PMI_SIZE", local_rank="MPI_LOCALRANKID", local_size="MPI_LOCALNRANKS"
    ),
)


class MPIClusterResolver(NumberedResolver):
    """The processes that mpirun or mpiexec of Open MPI, MPICH, Intel MPI or MVAPICH has started.

    It reads their variables and needs no MPI library. Of addresses MPI tells little: rank 0's is `coordinator`, or
    else MASTER_ADDR and MASTER_PORT, or this host if all tasks run on it, or the host of mpirun if Open MPI tells
    it; the others stand in `cluster_spec` as task-1, task-2 and so on. It is not in `tf.distribute`.

    Args:
        coordinator: Host and port of rank 0, such as "host-a:2222".

    Raises:
        ArgumentError: a variable is missing or makes no sense, or nothing tells where rank 0 is.

    >>> import os
    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, {"PMI_RANK": "1", "PMI_SIZE": "2"}):
    ...     MPIClusterResolver(coordinator="host-a:2222")
    MPIClusterResolver(ClusterSpec({'worker': ['host-a:2222', 'task-1']}), worker:1)
    """

    def __init__(self, coordinator: str | None = None) -> None:
        environ = env.inherited()
        names = _names(environ)
        rank, num_tasks = variables.place(environ, names.rank, names.size, _LAUNCHER)
        local = variables.place_on_host(environ, names.local_rank, names.local_size, _LAUNCHER)
        first = coordinator
        if first is None:
            host = _host_of_rank_0(environ, rank, all_here=local[1] == num_tasks)
            first = join(host, variables.number_or_none(environ, "MASTER_PORT", _LAUNCHER) or _port(environ))
        host_and_port(first, "coordinator")
        super().__init__(Tasks.behind(first, rank=rank, num_tasks=num_tasks, local=local))


def mpi_ranks(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """This process's rank and the number of tasks, or None if no launcher of MPI has started it.

    Args:
        environ: All variables.

    Raises:
        ArgumentError: a variable is no number.
    """
    for names in _FAMILIES:
        rank, size = (variables.number_or_none(environ, name, _LAUNCHER) for name in (names.rank, names.size))
        if rank is not None and size is not None:
            return rank, size
    return None


def _names(environ: Mapping[str, str]) -> _Names:
    for names in _FAMILIES:
        if environ.get(names.rank) or environ.get(names.size):
            return names
    known = ", ".join(names.rank for names in _FAMILIES)
    also = "; PMIX_RANK alone does not say how many tasks there are" if environ.get("PMIX_RANK") else ""
    raise ArgumentError(
        f"this process was not started by MPI: none of {known} is set{also}",
        fix="start the program with: mpirun -n 2 python train.py",
    )


def _host_of_rank_0(environ: Mapping[str, str], rank: int, *, all_here: bool) -> str:
    host = environ.get("MASTER_ADDR")
    if host:
        return host
    if all_here:
        return "127.0.0.1"
    found = _MPIRUN_IP.search(environ.get(_MPIRUN, ""))
    if found is None:
        raise ArgumentError("MPI does not tell on which host rank 0 is", fix=_COORDINATOR)
    host = found.group(1) or found.group(2)
    if rank == 0 and not _is_own(host):
        raise ArgumentError(
            f"rank 0 does not run on the host of mpirun ({host}, from {_MPIRUN}), where the others would look for it",
            fix=_COORDINATOR,
        )
    return host


def _port(environ: Mapping[str, str]) -> int:
    return variables.port_for(next((environ[name] for name in _JOB_NAMES if environ.get(name)), ""))


def _is_own(ip: str) -> bool:
    # Only an address of this host can be bound.
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True
