# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.tpu.experimental`."""

from __future__ import annotations

from stratagem.cluster_resolver._tpu_topology import (
    DeviceAssignment,
    DeviceOrderMode,
    HardwareFeature,
    Topology,
    TPUSystemMetadata,
)
from stratagem.strategies._tpu_system import initialize_tpu_system, shutdown_tpu_system

__all__ = [
    "DeviceAssignment",
    "DeviceOrderMode",
    "HardwareFeature",
    "TPUSystemMetadata",
    "Topology",
    "initialize_tpu_system",
    "shutdown_tpu_system",
]
