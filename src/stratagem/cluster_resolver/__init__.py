# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute.cluster_resolver`: where the tasks of a cluster are."""

from __future__ import annotations

import enum

from stratagem._core.unbuilt import Unbuilt
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem.cluster_resolver._tpu import TPUClusterResolver

__all__ = [
    "ClusterResolver",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
]


class KubernetesExecutableLocation(enum.Enum):
    """Whether the program itself runs in the Kubernetes cluster."""

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class GCEClusterResolver(Unbuilt, name="cluster_resolver.GCEClusterResolver"):
    """A managed instance group of Google Compute Engine. Not built yet."""


class KubernetesClusterResolver(Unbuilt, name="cluster_resolver.KubernetesClusterResolver"):
    """The pods of a Kubernetes cluster. Not built yet."""


class SimpleClusterResolver(Unbuilt, name="cluster_resolver.SimpleClusterResolver"):
    """A cluster that the program itself describes. Not built yet."""


class SlurmClusterResolver(Unbuilt, name="cluster_resolver.SlurmClusterResolver"):
    """The tasks of a Slurm job. Not built yet."""


class TFConfigClusterResolver(Unbuilt, name="cluster_resolver.TFConfigClusterResolver"):
    """The cluster in the variable TF_CONFIG. Not built yet."""


class UnionResolver(Unbuilt, name="cluster_resolver.UnionResolver"):
    """Several clusters as one. Not built yet."""
