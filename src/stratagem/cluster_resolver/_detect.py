# SPDX-License-Identifier: Apache-2.0
"""Which launcher has started this process, told by the variables that it sets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratagem._core import env
from stratagem.cluster_resolver import _variables as variables
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem.cluster_resolver._kubernetes import KubernetesClusterResolver
from stratagem.cluster_resolver._mpi import MPIClusterResolver, mpi_ranks
from stratagem.cluster_resolver._pods import pod_tasks
from stratagem.cluster_resolver._slurm import SlurmClusterResolver
from stratagem.cluster_resolver._tf_config_resolver import TFConfigClusterResolver
from stratagem.cluster_resolver._torchrun import TorchrunClusterResolver

__all__ = ["detect"]

_logger = logging.getLogger(__name__)

_POD = "KUBERNETES_SERVICE_HOST"


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """One launcher.

    Attributes:
        name: What it is called in the log.
        shown: The variable that tells its jobs apart, which the log shows.
        found: Whether it has started this process, as one of several tasks.
        resolver: Makes its resolver.
    """

    name: str
    shown: str | None
    found: Callable[[Mapping[str, str]], bool]
    resolver: Callable[[Mapping[str, str]], ClusterResolver]


def detect() -> ClusterResolver | None:
    """The resolver for what has started this process, or None if it is alone; one line of the log says which.

    Google Compute Engine and TPUs are never detected: their resolvers ask other machines, or are asked for by name.

    Raises:
        ArgumentError: a launcher's variables make no sense.
    """
    environ = env.inherited()
    for probe in _PROBES:
        if probe.found(environ):
            resolver = probe.resolver(environ)
            _logger.info("cluster: %s", _line(probe, resolver, environ))
            return resolver
    return None


def _line(probe: _Probe, resolver: ClusterResolver, environ: Mapping[str, str]) -> str:
    spec = resolver.cluster_spec()
    count = sum(spec.num_tasks(job) for job in spec.jobs)
    value = environ.get(probe.shown) if probe.shown else None
    source = f"{probe.name} ({probe.shown}={value})" if value else probe.name
    tasks = f"{count or 'no'} task{'' if count == 1 else 's'} from {source}"
    if resolver.task_type is None or resolver.task_id is None:
        return tasks
    return f"{tasks}, this one is {resolver.task_type}:{resolver.task_id}"


def _is_torchrun(environ: Mapping[str, str]) -> bool:
    if not all(environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return False
    # PyTorchJob sets the same names for each pod, which torchrun then sets for each process.
    if environ.get(_POD) and not environ.get("LOCAL_RANK"):
        return False
    return variables.number(environ, "WORLD_SIZE", "torchrun") > 1


def _is_slurm(environ: Mapping[str, str]) -> bool:
    tasks = variables.number_or_none(environ, "SLURM_STEP_NUM_TASKS", "srun")
    if tasks is None or tasks < 2:
        return False
    # mpirun in a Slurm job starts its helpers with srun, and what they start inherits the helpers' numbers.
    by_mpi = mpi_ranks(environ)
    return by_mpi is None or by_mpi == (variables.number(environ, "SLURM_PROCID", "srun"), tasks)


def _slurm(environ: Mapping[str, str]) -> ClusterResolver:
    # Jobs that share a node must not share its ports.
    step = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    return SlurmClusterResolver(port_base=variables.port_for(step))


def _is_mpi(environ: Mapping[str, str]) -> bool:
    by_mpi = mpi_ranks(environ)
    return by_mpi is not None and by_mpi[1] > 1


def _is_pod(environ: Mapping[str, str]) -> bool:
    if not environ.get(_POD):
        return False
    # Pods of a JobSet may as well work each for itself, so it counts only if the template says how many train together.
    if environ.get("JOBSET_NAME") and not environ.get("NUM_PROCESSES"):
        environ = {name: value for name, value in environ.items() if name != "JOBSET_NAME"}
    tasks = pod_tasks(environ, port=1)
    return tasks is not None and len(tasks.addresses) > 1


_PROBES = (
    # What a user writes by hand wins over what launchers leave behind.
    _Probe(
        name=env.TF_CONFIG,
        shown=None,
        found=lambda _: env.tf_config() is not None,
        resolver=lambda _: TFConfigClusterResolver(),
    ),
    # It runs inside the others, whose variables its processes inherit.
    _Probe(
        name="torchrun",
        shown="TORCHELASTIC_RUN_ID",
        found=_is_torchrun,
        resolver=lambda _: TorchrunClusterResolver(),
    ),
    # Knows all addresses, which MPI does not tell its tasks.
    _Probe(name="Slurm", shown="SLURM_JOB_ID", found=_is_slurm, resolver=_slurm),
    _Probe(name="MPI", shown="PMIX_NAMESPACE", found=_is_mpi, resolver=lambda _: MPIClusterResolver()),
    # Last, as MPI and torchrun run in pods too.
    _Probe(name="Kubernetes", shown="HOSTNAME", found=_is_pod, resolver=lambda _: KubernetesClusterResolver()),
)
