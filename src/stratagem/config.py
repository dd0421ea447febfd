# SPDX-License-Identifier: Apache-2.0
"""Settings that a program makes before it makes a strategy."""

from __future__ import annotations

from stratagem import launch
from stratagem._core import env, state
from stratagem.cluster_resolver import ClusterResolver
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError

__all__ = ["experimental_connect_to_cluster", "set_logical_cpu_devices"]


def experimental_connect_to_cluster(
    cluster_spec_or_resolver: ClusterResolver,
    job_name: str = "localhost",
    task_index: int = 0,
    protocol: str | None = None,
    make_master_device_default: bool = True,
    cluster_device_filters: object = None,
) -> None:
    """Nothing to do: strategies connect when they are used. `tf.config.experimental_connect_to_cluster`.

    It is here so that programs for TPUs keep their three lines.

    Args:
        cluster_spec_or_resolver: What found the TPU.
        job_name: Not used, as the rest.
        task_index: Not used.
        protocol: Not used.
        make_master_device_default: Not used.
        cluster_device_filters: Not used.

    Raises:
        ArgumentTypeError: it is given something else than a resolver.
    """
    del job_name, task_index, protocol, make_master_device_default, cluster_device_filters
    if not isinstance(cluster_spec_or_resolver, ClusterResolver):
        raise ArgumentTypeError(
            f"experimental_connect_to_cluster was given {cluster_spec_or_resolver!r}, not a cluster resolver",
            fix="leave the call out: strategies connect when they are used",
        )


def set_logical_cpu_devices(num_devices: int) -> None:
    """Let this host offer `num_devices` CPU devices, "CPU:0" and up, so that any program can be tried on a laptop.

    The counterpart of `tf.config.set_logical_device_configuration` for CPUs. Processes that this one starts see the
    same number. Call it before the first strategy is used, and with jax before anything computes: jax counts its
    devices once, and a strategy that finds fewer than were asked for raises `ContextError`.

    Args:
        num_devices: How many devices, 1 or more.

    Raises:
        ArgumentError: `num_devices` is less than 1.
        ArgumentTypeError: `num_devices` is not an int.
        ContextError: a strategy is in use already, with another number of devices.

    Example:
        >>> import stratagem as distribute
        >>> distribute.config.set_logical_cpu_devices(2)  # doctest: +SKIP
        >>> distribute.MirroredStrategy().num_replicas_in_sync  # doctest: +SKIP
        2
    """
    if not isinstance(num_devices, int) or isinstance(num_devices, bool):
        raise ArgumentTypeError(
            f"set_logical_cpu_devices({num_devices!r}) takes an int", fix="pass how many devices, 1 or more"
        )
    if num_devices < 1:
        raise ArgumentError(
            f"set_logical_cpu_devices({num_devices}) asks for less than one device", fix="ask for 1 or more"
        )
    if state.connected() and num_devices != env.cpu_devices():
        raise ContextError(
            f"set_logical_cpu_devices({num_devices}) comes too late: a strategy is in use already",
            fix=f"call it before the first strategy is used, or set {env.CPU_DEVICES}={num_devices} outside",
        )
    launch.set_cpu_devices(num_devices)
