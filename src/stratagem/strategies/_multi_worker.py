# SPDX-License-Identifier: Apache-2.0
"""A strategy with one replica on each device of several machines."""

from __future__ import annotations

from stratagem._core import env
from stratagem._core.cluster import Cluster
from stratagem._core.options import CommunicationOptions
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver import _tf_config as tf_config
from stratagem.engines import select
from stratagem.errors import ArgumentError, ArgumentTypeError, LaunchError
from stratagem.strategies import _collectives
from stratagem.strategies._mirrored import MirroredExtended
from stratagem.strategies._strategy import Strategy

__all__ = ["MultiWorkerMirroredStrategy"]


class MultiWorkerExtended(MirroredExtended):
    """`extended` of a `MultiWorkerMirroredStrategy`."""

    def __init__(self, container_strategy: Strategy, cluster: Cluster | None) -> None:
        self._cluster = cluster
        if cluster is not None:
            _refuse_in_a_job(cluster)
            select.engine().join(cluster)
        super().__init__(container_strategy, None, None)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The replicas' devices by their long names, in replica order."""
        if self._cluster is None:
            return super().worker_devices
        share = len(self.devices) // self._cluster.world_size
        kinds = [name.partition(":")[0] for name in self.devices]
        return tuple(
            f"/job:worker/replica:0/task:{replica // share}/device:{kind}:{replica % share}"
            for replica, kind in enumerate(kinds)
        )


class MultiWorkerMirroredStrategy(Strategy):
    """Train on all devices of several machines in step: `tf.distribute.MultiWorkerMirroredStrategy`.

    Every machine runs the same program. With the variable TF_CONFIG, the chief and the workers in it train together;
    the first of them listens at its address there, and each waits until all have come. In a job that `stratagem run`
    started, the strategy spans its processes. Without either it trains on this machine's devices alone.

    Args:
        cluster_resolver: Says which tasks there are, and which this process is; TF_CONFIG does if it is not given.
        communication_options: Accepted as in `tf.distribute`.

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
        _collectives.check_options(communication_options)
        self._cluster_resolver = cluster_resolver
        cluster = tf_config.from_tf_config() if cluster_resolver is None else _resolved(cluster_resolver)
        super().__init__(MultiWorkerExtended(self, cluster))

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """The resolver that was given, or None."""
        return self._cluster_resolver


def _resolved(resolver: object) -> Cluster | None:
    if not isinstance(resolver, ClusterResolver):
        raise ArgumentTypeError(
            f"cluster_resolver={resolver!r} is not a ClusterResolver", fix="leave it out, and set TF_CONFIG"
        )
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return None
    if resolver.task_type is None or resolver.task_id is None:
        raise ArgumentError(
            f"the {type(resolver).__name__} does not say which task this process is",
            fix="let its task_type and task_id say so",
        )
    return tf_config.cluster_of(jobs, resolver.task_type, resolver.task_id)


def _refuse_in_a_job(cluster: Cluster) -> None:
    job = env.job()
    if job is not None and job.world_size > 1:
        raise LaunchError(
            f"the cluster has {cluster.world_size} tasks, and this one was started as {job.world_size} processes",
            fix="start one process per task: stratagem run --processes 1 script.py, or python script.py",
        )
