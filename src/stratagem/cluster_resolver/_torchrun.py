# SPDX-License-Identifier: Apache-2.0
"""The processes that torchrun starts."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem._core import env
from stratagem.cluster_resolver import _variables as variables
from stratagem.cluster_resolver._address import MAX_PORT, join
from stratagem.cluster_resolver._numbered import NumberedResolver, Tasks
from stratagem.errors import ArgumentError

__all__ = ["TorchrunClusterResolver", "torchrun_tasks"]

_LAUNCHER = "torchrun"


class TorchrunClusterResolver(NumberedResolver):
    """The processes that torchrun, or another launcher with its variables, has started (not in `tf.distribute`).

    It reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK and LOCAL_WORLD_SIZE. They tell the first task's
    address only; the others stand in `cluster_spec` as task-1, task-2 and so on.

    Args:
        port: The port on which the tasks meet. By default MASTER_PORT, or the port after it where torchrun's own
            process listens on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True).

    Raises:
        ArgumentError: a variable is missing, or makes no sense.

    >>> import os
    >>> from unittest import mock
    >>> names = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host-a", "MASTER_PORT": "29500"}
    >>> with mock.patch.dict(os.environ, names):
    ...     TorchrunClusterResolver()
    TorchrunClusterResolver(ClusterSpec({'worker': ['host-a:29500', 'task-1']}), worker:1)
    """

    def __init__(self, port: int | None = None) -> None:
        super().__init__(torchrun_tasks(env.inherited(), port))


def torchrun_tasks(environ: Mapping[str, str], port: int | None = None) -> Tasks:
    """The tasks that torchrun's variables tell of.

    Args:
        environ: All variables.
        port: The port on which they meet, or None for the one beside torchrun's.

    Raises:
        ArgumentError: a variable is missing, or makes no sense.
    """
    rank, num_tasks = variables.place(environ, "RANK", "WORLD_SIZE", _LAUNCHER)
    host = variables.text(environ, "MASTER_ADDR", _LAUNCHER)
    if port is None:
        port = variables.number(environ, "MASTER_PORT", _LAUNCHER)
        # torchrun's agent, which outlives its workers, keeps MASTER_PORT for its store then; otherwise nobody
        # listens there before rank 0 does.
        port += environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not 0 < port <= MAX_PORT:
        raise ArgumentError(f"{port} is no port", fix=f"choose MASTER_PORT, or port, from 1 to {MAX_PORT - 1}")
    local = variables.place_on_host(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE", _LAUNCHER)
    return Tasks.behind(join(host, port), rank=rank, num_tasks=num_tasks, local=local)
