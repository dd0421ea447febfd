# SPDX-License-Identifier: Apache-2.0
"""The tasks of a Slurm job: `tf.distribute.cluster_resolver.SlurmClusterResolver`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stratagem._core import env
from stratagem.cluster_resolver import _variables as variables
from stratagem.cluster_resolver._address import join
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._host_list import expand_counts, expand_hosts
from stratagem.cluster_resolver._numbered import WORKER, Tasks
from stratagem.cluster_resolver._own_task import OwnTaskResolver
from stratagem.cluster_resolver._slurm_gpus import VISIBLE, gpu_share
from stratagem.errors import ArgumentError

__all__ = ["SlurmClusterResolver"]

_LAUNCHER = "srun"
_NODES, _COUNTS = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"


class SlurmClusterResolver(OwnTaskResolver):
    """The tasks that srun has started, one after the other on each node (block), or in turn on all (cyclic).

    It reads SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, SLURM_LOCALID and
    SLURM_DISTRIBUTION. The counterpart of `tf.distribute.cluster_resolver.SlurmClusterResolver`; it takes the nodes
    in Slurm's order (TensorFlow sorts them by name), and writes no variable: see `device_variables`.

    Args:
        jobs: How many tasks each job has; the ranks are given out by job in alphabetical order. All are workers by
            default.
        port_base: The port of the first task of each node; the others have those after it.
        gpus_per_node: How many GPUs the job has on a node; by default what Slurm and CUDA say.
        gpus_per_task: How many GPUs a task has; by default what Slurm says, or the same number for all of a node.
        tasks_per_node: How many tasks a node has, or a dict with that of each; by default what Slurm says.
        auto_set_gpu: Whether `device_variables` says which GPUs are this task's.
        rpc_layer: The protocol that `master` puts before an address.

    Raises:
        ArgumentError: a variable is missing or makes no sense, the jobs have more or fewer tasks than there are, the
            tasks want more GPUs than a node has, or Slurm has placed them in another way.

    >>> import os
    >>> from unittest import mock
    >>> names = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}
    >>> names |= {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    >>> with mock.patch.dict(os.environ, names):
    ...     SlurmClusterResolver(gpus_per_node=0)
    SlurmClusterResolver(ClusterSpec({'worker': ['n1:8888', 'n1:8889', 'n2:8888', 'n2:8889']}), worker:2)
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        environ = env.inherited()
        nodes = _nodes(environ, tasks_per_node)
        tasks = _tasks(environ, nodes, port_base)
        jobs = {WORKER: variables.number(environ, "SLURM_STEP_NUM_TASKS", _LAUNCHER)} if jobs is None else jobs
        if sum(jobs.values()) != len(tasks.addresses):
            raise ArgumentError(
                f"the jobs have {sum(jobs.values())} tasks, but Slurm runs {len(tasks.addresses)}",
                fix=f"jobs={{'worker': {len(tasks.addresses)}}}, or srun --ntasks={sum(jobs.values())}",
            )
        self._jobs = _divide(jobs, tasks.addresses)
        self._task_type, self._task_id = [(job, index) for job in self._jobs for index in range(len(self._jobs[job]))][
            tasks.rank
        ]
        self._rpc_layer = rpc_layer
        self._local = tasks.local
        self._gpus = gpu_share(
            environ,
            per_node=gpus_per_node,
            per_task=gpus_per_task,
            most_tasks=max(nodes.values()),
            local=tasks.local[0],
        )
        self._auto_set_gpu = auto_set_gpu

    def cluster_spec(self) -> ClusterSpec:
        """The tasks, by job."""
        return ClusterSpec(self._jobs)

    def get_task_info(self) -> tuple[str | None, int | None]:
        """The job that this process is a task of, and its number there."""
        return self.task_type, self.task_id

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """How many GPUs each task has: {"GPU": 2}.

        Args:
            task_type: Not used.
            task_id: Not used.
            config_proto: Not used.
        """
        del task_type, task_id, config_proto
        return {"GPU": self._gpus.per_task}

    def local_tasks(self) -> tuple[int, int]:
        """Which of the tasks on its node this one is, and how many there are (not in `tf.distribute`)."""
        return self._local

    def device_variables(self) -> dict[str, str]:
        """What to set so that this process sees its own GPUs alone, if anything (not in `tf.distribute`).

        It is empty with `auto_set_gpu=False`, without GPUs, and where Slurm has done it already.
        """
        if not self._auto_set_gpu or self._gpus.visible is None:
            return {}
        return {VISIBLE: ",".join(self._gpus.visible)}

    def __repr__(self) -> str:
        return f"SlurmClusterResolver({self.cluster_spec()}, {self.task_type}:{self.task_id})"


def _nodes(environ: Mapping[str, str], tasks_per_node: int | Mapping[str, int] | None) -> dict[str, int]:
    """The nodes in Slurm's order, with the number of tasks of each."""
    if isinstance(tasks_per_node, Mapping):
        known = expand_hosts(environ[_NODES]) if environ.get(_NODES) else []
        order = {host: place for place, host in enumerate(known)}
        nodes = dict(sorted(tasks_per_node.items(), key=lambda node: (order.get(node[0], len(order)), node[0])))
    else:
        hosts = expand_hosts(variables.text(environ, _NODES, _LAUNCHER))
        if tasks_per_node is None:
            counts = expand_counts(variables.text(environ, _COUNTS, _LAUNCHER))
        else:
            counts = [tasks_per_node] * len(hosts)
        if len(hosts) != len(counts) or len(set(hosts)) != len(hosts):
            raise ArgumentError(
                f"{_NODES}={environ[_NODES]} and {_COUNTS}={environ.get(_COUNTS)} don't name each node once",
                fix="leave both to srun, which sets them",
            )
        nodes = dict(zip(hosts, counts, strict=True))
    if not nodes or min(nodes.values()) < 1:
        raise ArgumentError(f"not every node has a task: {nodes}", fix="tasks_per_node=1 or more")
    return nodes


def _tasks(environ: Mapping[str, str], nodes: Mapping[str, int], port_base: int) -> Tasks:
    distribution = environ.get("SLURM_DISTRIBUTION", "block").partition(":")[0].partition(",")[0]
    if distribution not in ("block", "cyclic"):
        raise ArgumentError(
            f"SLURM_DISTRIBUTION={distribution} is no way to place tasks that is understood here",
            fix="srun --distribution=block, or cyclic",
        )
    places = list(_cyclic(nodes) if distribution == "cyclic" else _block(nodes))
    rank = variables.number(environ, "SLURM_PROCID", _LAUNCHER)
    addresses = tuple(join(host, port_base + local) for host, local in places)
    if rank >= len(places):
        raise ArgumentError(
            f"SLURM_PROCID={rank}, but the nodes have {len(places)} tasks: {dict(nodes)}",
            fix="tasks_per_node is to count all tasks that srun starts",
        )
    host, local = places[rank]
    _check_place(environ, rank, host, local)
    return Tasks(addresses=addresses, rank=rank, local=(local, nodes[host]))


def _block(nodes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((host, local) for host, count in nodes.items() for local in range(count))


def _cyclic(nodes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((host, turn) for turn in range(max(nodes.values())) for host, count in nodes.items() if turn < count)


def _check_place(environ: Mapping[str, str], rank: int, host: str, local: int) -> None:
    actual_host = environ.get("SLURMD_NODENAME") or host
    actual_local = variables.number_or_none(environ, "SLURM_LOCALID", _LAUNCHER)
    if actual_local is None:
        actual_local = local
    if (actual_host, actual_local) != (host, local):
        raise ArgumentError(
            f"Slurm runs rank {rank} as task {actual_local} of {actual_host}, "
            f"not as task {local} of {host} as its variables say",
            fix="start the tasks with: srun --distribution=block",
        )


def _divide(jobs: Mapping[str, int], addresses: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    divided: dict[str, tuple[str, ...]] = {}
    start = 0
    for job, count in sorted(jobs.items()):
        divided[job] = addresses[start : start + count]
        start += count
    return divided
