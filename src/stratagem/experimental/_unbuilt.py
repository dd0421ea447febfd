# SPDX-License-Identifier: Apache-2.0
"""The strategies and helpers of `tf.distribute.experimental` that are not built yet."""

from __future__ import annotations

from stratagem._core.unbuilt import Unbuilt

__all__ = ["CentralStorageStrategy", "ParameterServerStrategy"]


class CentralStorageStrategy(Unbuilt, name="experimental.CentralStorageStrategy"):
    """Variables on one device, computation on all. Not built yet."""


class ParameterServerStrategy(Unbuilt, name="experimental.ParameterServerStrategy"):
    """The older name of `ParameterServerStrategy`. Not built yet."""
