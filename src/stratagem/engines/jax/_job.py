# SPDX-License-Identifier: Apache-2.0
"""What the processes of a job must agree on when they connect."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from stratagem._core.enums import Reduction
from stratagem.engines._random_state import put_random_states, random_states
from stratagem.engines.jax._collectives import Collectives
from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._peers import Peers
from stratagem.errors import JobMismatchError, LaunchError

__all__ = ["check", "try_out"]

_CHIEF = 0


def check(peers: Peers, devices: tuple[str, ...], replicas: Replicas) -> None:
    """See that all processes use the same devices and have as many of them, and share the chief's random states.

    Raises:
        JobMismatchError: they use different devices.
        LaunchError: a process has fewer replicas than another.
    """
    counts = Counter(device.process_index for device in replicas.devices)
    per_process = [counts[rank] for rank in range(peers.world_size)]
    if len(set(per_process)) > 1:
        raise LaunchError(
            f"the devices {list(devices)} give the {peers.world_size} processes of this job {per_process} replicas, "
            "where each needs as many",
            fix="use a strategy over all devices, or start one process: stratagem run --processes 1 script.py",
        )
    if per_process[0] == 1:
        peers.call_replicas()
    states = random_states() if peers.rank == _CHIEF else None
    said = peers.exchange("entering its strategy's scope", (devices, states))
    for rank, (theirs, _) in enumerate(said):
        if theirs != devices:
            raise JobMismatchError(
                f"process {peers.rank} uses the devices {list(devices)}, but process {rank} uses {list(theirs)}",
                fix="give the strategy the same devices in every process",
            )
    put_random_states(said[_CHIEF][1])


def try_out(peers: Peers, programs: Collectives, num_local: int) -> None:
    """Make a first collective, which opens the connections between the processes.

    Raises:
        ReplicaFailedError: a process was lost, or can't be reached.
    """
    with peers.naming_the_lost("the first collective"), _quiet_stdout():
        jax.block_until_ready(programs.all_reduce(Reduction.SUM, [[jnp.zeros(1)]] * num_local))


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Nothing is written to this process's stdout inside the block: gloo tells there of each of its connections."""
    try:
        kept = os.dup(1)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
