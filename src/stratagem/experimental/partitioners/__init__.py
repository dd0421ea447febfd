# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute.experimental.partitioners`: how variables are cut over parameter servers."""

from __future__ import annotations

from stratagem._core.unbuilt import Unbuilt

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner"]


class Partitioner(Unbuilt, name="experimental.partitioners.Partitioner"):
    """What every partitioner answers. Not built yet."""


class FixedShardsPartitioner(Unbuilt, name="experimental.partitioners.FixedShardsPartitioner"):
    """A fixed number of shards. Not built yet."""


class MaxSizePartitioner(Unbuilt, name="experimental.partitioners.MaxSizePartitioner"):
    """Shards of at most a size. Not built yet."""


class MinSizePartitioner(Unbuilt, name="experimental.partitioners.MinSizePartitioner"):
    """Shards of at least a size. Not built yet."""
