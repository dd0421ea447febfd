# SPDX-License-Identifier: Apache-2.0
"""Replicas for programs that have no command line to run again: notebooks and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from stratagem.launch._pool import ReplicaPool

T = TypeVar("T")


def launch(fn: Callable[..., T], replicas: int, args: Sequence[object] = (), cpu_devices: int | None = None) -> list[T]:
    """Call `fn(*args)` in new processes that form one job of `replicas` replicas, and return what each returned.

    With torch each replica is a process; with jax one process holds them all.

    The way to several devices from a notebook or a REPL; a script needs no launcher. Inside `fn` make the strategy,
    the model and the data. Has no counterpart in `tf.distribute`, whose replicas are threads.

    Args:
        fn: Any function; one of a notebook, a closure or a lambda too.
        replicas: How many.
        args: The arguments of `fn`, the same in every process.
        cpu_devices: How many logical CPU devices the processes see; `replicas` of them where there is no GPU.

    Returns:
        The results, one per process, in order.

    Raises:
        ReplicaFailedError: a replica failed; the text has its traceback.
        ArgumentError: `replicas` or `cpu_devices` is less than 1.
        DeviceError: more replicas than devices.

    Example:
        >>> import stratagem
        >>> stratagem.launch(lambda name: f"hello {name}", replicas=2, args=("you",))  # doctest: +SKIP
        ['hello you', 'hello you']
    """
    with ReplicaPool(replicas=replicas, cpu_devices=cpu_devices) as pool:
        return pool.run(fn, *args, timeout_seconds=None)
