# SPDX-License-Identifier: Apache-2.0
"""The variables that Kubernetes's training operators set in the pods of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stratagem.cluster_resolver import _variables as variables
from stratagem.cluster_resolver._address import host_and_port, join
from stratagem.cluster_resolver._numbered import Tasks
from stratagem.cluster_resolver._torchrun import torchrun_tasks
from stratagem.errors import ArgumentError

__all__ = ["pod_tasks"]

_OWN_NAMES = "set COORDINATOR_ADDRESS, COORDINATOR_PORT, NUM_PROCESSES and PROCESS_ID in the pods' template"


def pod_tasks(environ: Mapping[str, str], port: int) -> Tasks | None:
    """The tasks that a pod's variables tell of, or None if they are those of no operator that is known here.

    Args:
        environ: All variables.
        port: Where the tasks of a JobSet listen.

    Raises:
        ArgumentError: a variable is missing, or makes no sense.
    """
    for names, read in _OPERATORS:
        if all(environ.get(name) for name in names):
            return read(environ, port)
    return None


def _coordinator(prefix: str) -> Callable[[Mapping[str, str], int], Tasks]:
    def read(environ: Mapping[str, str], port: int) -> Tasks:
        del port
        launcher = "JAXJob"
        name = f"{prefix}COORDINATOR_ADDRESS"
        address = environ[name]
        if ":" not in address:  # JAXJob gives the port on its own
            address = join(address, variables.number(environ, f"{prefix}COORDINATOR_PORT", launcher))
        host_and_port(address, name)
        rank, count = variables.place(environ, f"{prefix}PROCESS_ID", f"{prefix}NUM_PROCESSES", launcher)
        return Tasks.behind(address, rank=rank, num_tasks=count)

    return read


def _torch_nodes(environ: Mapping[str, str], port: int) -> Tasks:
    del port
    launcher = "PyTorchJob"
    nodes = environ["PET_NNODES"]
    if ":" in nodes:
        raise ArgumentError(
            f"PET_NNODES={nodes!r} leaves open how many pods there are", fix="start the program with torchrun"
        )
    prefix = "PET_" if environ.get("PET_MASTER_ADDR") else ""
    host = variables.text(environ, f"{prefix}MASTER_ADDR", launcher)
    first = join(host, variables.number(environ, f"{prefix}MASTER_PORT", launcher))
    rank, count = variables.place(environ, "PET_NODE_RANK", "PET_NNODES", launcher)
    return Tasks.behind(first, rank=rank, num_tasks=count)


def _torch_processes(environ: Mapping[str, str], port: int) -> Tasks:
    del port
    return torchrun_tasks(environ)


def _job_set(environ: Mapping[str, str], port: int) -> Tasks:
    launcher = "JobSet"
    if environ.get("JOB_INDEX", "0") != "0":
        raise ArgumentError("JOB_INDEX is not 0: a replicated job of several jobs is not understood", fix=_OWN_NAMES)
    if not environ.get("NUM_PROCESSES"):
        raise ArgumentError(
            "nothing tells how many pods the JobSet has", fix="set NUM_PROCESSES to its parallelism, in the template"
        )
    rank, count = variables.place(environ, "JOB_COMPLETION_INDEX", "NUM_PROCESSES", launcher)
    # The pods' names in the headless service, whose name is that of the JobSet.
    jobset, job = environ["JOBSET_NAME"], environ["REPLICATED_JOB_NAME"]
    addresses = tuple(join(f"{jobset}-{job}-0-{index}.{jobset}", port) for index in range(count))
    return Tasks(addresses=addresses, rank=rank)


# What tells that each is there, and how to read it; the first is taken.
_OPERATORS: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, str], int], Tasks]], ...] = (
    (("RANK", "LOCAL_RANK"), _torch_processes),  # torchrun runs in the pod, and has renumbered what follows
    (("PROCESS_ID", "COORDINATOR_ADDRESS"), _coordinator("")),  # JAXJob
    (("JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"), _coordinator("JAX_")),  # TrainJob with JAX
    # Before RANK: WORLD_SIZE counts what torchrun would start in the pods, and here it starts nothing.
    (("PET_NODE_RANK", "PET_NNODES"), _torch_nodes),  # PyTorchJob, TrainJob
    (("RANK", "WORLD_SIZE"), _torch_processes),  # PyTorchJob of before these
    (("JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_COMPLETION_INDEX"), _job_set),
)
