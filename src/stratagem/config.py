# SPDX-License-Identifier: Apache-2.0
"""Settings that a program makes before it makes a strategy."""

from __future__ import annotations

from stratagem import launch
from stratagem._core import env, state
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError

__all__ = ["set_logical_cpu_devices"]


def set_logical_cpu_devices(num_devices: int) -> None:
    """Let this host offer `num_devices` CPU devices, "CPU:0" and up, so that any program can be tried on a laptop.

    The counterpart of `tf.config.set_logical_device_configuration` for CPUs. Processes that this one starts see the
    same number. Call it before the first strategy is used.

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
