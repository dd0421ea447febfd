# SPDX-License-Identifier: Apache-2.0
"""TPU devices that are not there, to compile for."""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import topologies

from stratagem._core.tpu_slice import KINDS, Slice
from stratagem.engines.jax import _libtpu
from stratagem.errors import ArgumentError, BackendError

__all__ = ["devices_of"]

# libtpu's own default; a slice with fewer chips in a dimension has a host of its own size.
_HOST_SIDE = 2


def devices_of(tpu_slice: Slice) -> list[Any]:
    """The devices of a slice; programs can be compiled for them and not run.

    Raises:
        BackendError: libtpu, which knows TPUs, is not installed.
        ArgumentError: there is no such slice.
    """
    kind = KINDS[tpu_slice.kind]
    host = (*(min(_HOST_SIDE, size) for size in tpu_slice.shape[:2]), 1)
    options = {} if kind.chip_config is None else {"chip_config_name": kind.chip_config}
    try:
        with _libtpu.may_load():
            found = topologies.get_topology_desc(tpu_slice.name, "tpu", chips_per_host_bounds=host, **options)
    except jax.errors.JaxRuntimeError as error:
        if "lockfile" in str(error):
            raise BackendError(
                f"libtpu can't be used, as another process uses it: {error}",
                fix="end that process, or set ALLOW_MULTIPLE_LIBTPU_LOAD=1 if it does not train on a TPU",
            ) from error
        raise ArgumentError(
            f"libtpu knows no slice {tpu_slice.name!r}: {error}", fix="use the shape of a slice that exists"
        ) from error
    except RuntimeError as error:  # jax says so when the package is missing
        raise BackendError(
            f"compiling for {tpu_slice.name} needs libtpu, the library that drives TPUs: {error}",
            fix="pip install 'stratagem[tpu]' (Linux on x86_64; no TPU is needed)",
        ) from error
    devices = list(found.devices)
    assert len(devices) == tpu_slice.num_devices, f"{tpu_slice} has {len(devices)} devices"
    return devices
