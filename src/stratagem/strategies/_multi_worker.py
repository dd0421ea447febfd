# SPDX-License-Identifier: Apache-2.0
"""A strategy with one replica on each device of several machines."""

from __future__ import annotations

from dataclasses import replace

from stratagem import launch
from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem._core.options import CommunicationOptions
from stratagem.cluster_resolver import ClusterResolver, SlurmClusterResolver, TFConfigClusterResolver
from stratagem.cluster_resolver import _tf_config as tf_config
from stratagem.cluster_resolver._detect import detect
from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.errors import ArgumentError, ArgumentTypeError, LaunchError
from stratagem.strategies import _collectives
from stratagem.strategies._mirrored import MirroredExtended
from stratagem.strategies._on_devices import OnDevicesExtended
from stratagem.strategies._strategy import Strategy

__all__ = ["MultiWorkerMirroredStrategy"]


class MultiWorkerExtended(OnDevicesExtended):
    """`extended` of a `MultiWorkerMirroredStrategy` whose cluster has several tasks."""

    def __init__(self, container_strategy: Strategy, cluster: Cluster) -> None:
        engine = select.engine()
        self._num_tasks = cluster.world_size
        engine.join(_as_processes(cluster, engine))
        super().__init__(container_strategy, engine, engine.local_devices())

    @property
    def num_workers(self) -> int:
        """Tasks of the cluster."""
        return self._num_tasks

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The replicas' devices by their long names, in replica order."""
        share = len(self.devices) // self._num_tasks
        kinds = [name.partition(":")[0] for name in self.devices]
        return tuple(
            f"/job:worker/replica:0/task:{replica // share}/device:{kind}:{replica % share}"
            for replica, kind in enumerate(kinds)
        )


class MultiWorkerMirroredStrategy(Strategy):
    """Train on all devices of several machines in step: `tf.distribute.MultiWorkerMirroredStrategy`.

    Every machine runs the same program. The chief and the workers of the variable TF_CONFIG train together, or the
    tasks that torchrun, Slurm, MPI or Kubernetes started; the first of them listens at its address, and each waits
    until all have come. In a job that `stratagem run` started, the strategy spans its processes. Without any of these
    it trains on this machine's devices alone.

    Args:
        cluster_resolver: Says which tasks there are, and which this process is; if it is not given, what has started
            this process does.
        communication_options: `timeout_seconds` bounds every wait for others in this job. With PyTorch
            `bytes_per_pack` is the size of one message of gradients, and RING keeps NCCL from being used between GPUs;
            JAX decides both by itself.

    Raises:
        CollectiveTimeoutError: a task did not come in time.
        ArgumentError: TF_CONFIG can't be read, or names no task of its cluster.
        ArgumentTypeError: an argument is of the wrong type.
        ContextError: the framework has computed before, and can't be told of other machines any more.
        LaunchError: TF_CONFIG names several tasks, and `stratagem run` started several processes.

    >>> from stratagem.engines import select
    >>> from stratagem.testing.fake_engine import FakeEngine
    >>> with select.use(FakeEngine(2)):
    ...     MultiWorkerMirroredStrategy()
    MultiWorkerMirroredStrategy(engine=fake, devices=('CPU:0', 'CPU:1'), replicas=2)
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        _collectives.check_type_of_options(communication_options)
        if communication_options is not None:
            _communicate_by(communication_options)
        self._cluster_resolver = detect() if cluster_resolver is None else cluster_resolver
        cluster = None if self._cluster_resolver is None else _resolved(self._cluster_resolver)
        super().__init__(MirroredExtended(self, None, None) if cluster is None else MultiWorkerExtended(self, cluster))

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """The resolver that was given, or that of what has started this process, or None."""
        return self._cluster_resolver


def _communicate_by(options: CommunicationOptions) -> None:
    if options.timeout_seconds is not None:
        # In the processes that this one starts as well.
        launch.set_variables({env.COLLECTIVE_TIMEOUT_SECONDS: f"{options.timeout_seconds:g}"})
    select.engine().communicate_by(options)


def _resolved(resolver: object) -> Cluster | None:
    if not isinstance(resolver, ClusterResolver):
        raise ArgumentTypeError(
            f"cluster_resolver={resolver!r} is not a ClusterResolver", fix="leave it out, and set TF_CONFIG"
        )
    if isinstance(resolver, TFConfigClusterResolver):
        # By it: an index that is missing is 0, and an evaluator takes no part.
        return tf_config.from_tf_config()
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return None
    if resolver.task_type is None or resolver.task_id is None:
        raise ArgumentError(
            f"the {type(resolver).__name__} does not say which task this process is",
            fix="let its task_type and task_id say so",
        )
    cluster = tf_config.cluster_of(jobs, resolver.task_type, resolver.task_id)
    if cluster is None:
        return None
    if isinstance(resolver, SlurmClusterResolver) and (variables := resolver.device_variables()):
        # It sees no others' devices then, so there is nothing to divide.
        launch.set_variables(variables)
        return cluster
    local_task, num_local_tasks = resolver.local_tasks()
    return replace(cluster, local_task=local_task, num_local_tasks=num_local_tasks)


def _as_processes(cluster: Cluster, engine: Engine) -> Cluster:
    """The cluster's processes: where the engine wants one for each device, this task starts its own."""
    job = env.job()
    if engine.capabilities.many_replicas_per_process:
        if job is not None and job.world_size > 1:
            raise LaunchError(
                f"the cluster has {cluster.world_size} tasks, and this one was started as {job.world_size} processes",
                fix="start one process per task: stratagem run --processes 1 script.py, or python script.py",
            )
        return cluster
    if job is not None:
        return cluster.of_processes(job.world_size, job.rank)
    devices = cluster.devices_of_task(engine.local_devices())
    if len(devices) > 1:
        launch.become_launcher(len(devices), on_cpu=devices[0].startswith("CPU"))
    return cluster
