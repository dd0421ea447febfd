# SPDX-License-Identifier: Apache-2.0
"""Several clusters as one: `tf.distribute.cluster_resolver.UnionResolver`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem.cluster_resolver._address import with_protocol
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.errors import ArgumentError, ArgumentTypeError

__all__ = ["UnionResolver"]

_OPTIONS = ("rpc_layer", "task_type", "task_id")


class UnionResolver(ClusterResolver):
    """The tasks of several resolvers as one cluster; everything else is asked of the first of them.

    Where several name one job, its tasks stand one list after the other. If one of them numbers its tasks with gaps,
    each task keeps its number, and none may be there twice. The counterpart of
    `tf.distribute.cluster_resolver.UnionResolver`.

    Args:
        *args: The resolvers.
        **kwargs: `rpc_layer`, `task_type` and `task_id`, used instead of those of the first resolver.

    Raises:
        ArgumentError: there is no resolver, or an argument is unknown.
        ArgumentTypeError: an argument is not a ClusterResolver.

    >>> from stratagem.cluster_resolver import SimpleClusterResolver
    >>> workers = SimpleClusterResolver(ClusterSpec({"worker": ["host-a:2222"]}), task_type="worker", task_id=0)
    >>> servers = SimpleClusterResolver(ClusterSpec({"ps": ["host-b:2222"]}))
    >>> UnionResolver(workers, servers).cluster_spec()
    ClusterSpec({'worker': ['host-a:2222'], 'ps': ['host-b:2222']})
    """

    def __init__(self, *args: ClusterResolver, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(_OPTIONS))
        if unknown:
            raise ArgumentError(f"UnionResolver takes no {', '.join(unknown)}", fix=f"it takes {', '.join(_OPTIONS)}")
        if not args:
            raise ArgumentError("UnionResolver has no resolvers", fix="UnionResolver(resolver_a, resolver_b)")
        for resolver in args:
            if not isinstance(resolver, ClusterResolver):
                raise ArgumentTypeError(
                    f"{resolver!r:.100} is not a ClusterResolver", fix="UnionResolver(resolver_a, resolver_b)"
                )
        self._resolvers = args
        self._rpc_layer: str | None = kwargs.get("rpc_layer")
        self._task_type = kwargs.get("task_type")
        self._task_id = kwargs.get("task_id")

    def cluster_spec(self) -> ClusterSpec:
        """The tasks of all resolvers.

        Raises:
            ArgumentError: two resolvers have the same task, in a job that one of them numbers with gaps.
        """
        parts = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        jobs = dict.fromkeys(job for part in parts for job in part)
        return ClusterSpec({job: _merged(job, [part[job] for part in parts if job in part]) for job in jobs})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of one task, or the first resolver's master.

        Args:
            task_type: The task's job; it goes together with `task_id`.
            task_id: The task's number.
            rpc_layer: The protocol to put before the address; by default that of the resolver.

        Raises:
            ArgumentError: the cluster has no such task.
        """
        if task_type is None or task_id is None:
            return self._resolvers[0].master(rpc_layer=rpc_layer)
        return with_protocol(self.cluster_spec().task_address(task_type, task_id), rpc_layer or self._rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """What the first resolver says.

        Args:
            task_type: The task's job.
            task_id: The task's number.
            config_proto: TensorFlow 1 only, and not looked at.
        """
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    def local_tasks(self) -> tuple[int, int]:
        """What the first resolver says (not in `tf.distribute`)."""
        return self._resolvers[0].local_tasks()

    @property
    def environment(self) -> str:
        """What the first resolver says."""
        return self._resolvers[0].environment

    @property
    def task_type(self) -> str | None:
        """The job that this process is a task of."""
        return self._resolvers[0].task_type if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's number among the tasks of its job."""
        # TensorFlow takes an overriding 0 for none, and answers with the first resolver's.
        return self._resolvers[0].task_id if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol that `master` puts before an address, or None."""
        return self._rpc_layer or getattr(self._resolvers[0], "rpc_layer", None)

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def _merged(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return [address for part in lists for address in part]
    merged: dict[int, str] = {}
    for part in parts:
        numbered = dict(enumerate(part)) if isinstance(part, list) else part
        twice = sorted(merged.keys() & numbered.keys())
        if twice:
            raise ArgumentError(
                f"two resolvers have the task {job}:{twice[0]}", fix="number the job's tasks differently in each"
            )
        merged.update(numbered)
    return merged
