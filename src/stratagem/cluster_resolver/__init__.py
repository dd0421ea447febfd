# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.distribute.cluster_resolver`: where the tasks of a cluster are.

`ClusterSpec` (in TensorFlow `tf.train.ClusterSpec`), `MPIClusterResolver` and `TorchrunClusterResolver` are ours.
"""

from __future__ import annotations

from stratagem.cluster_resolver._base import ClusterResolver
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._gce import GCEClusterResolver
from stratagem.cluster_resolver._kubernetes import ExecutableLocation as KubernetesExecutableLocation
from stratagem.cluster_resolver._kubernetes import KubernetesClusterResolver
from stratagem.cluster_resolver._mpi import MPIClusterResolver
from stratagem.cluster_resolver._simple import SimpleClusterResolver
from stratagem.cluster_resolver._slurm import SlurmClusterResolver
from stratagem.cluster_resolver._tf_config_resolver import TFConfigClusterResolver
from stratagem.cluster_resolver._torchrun import TorchrunClusterResolver
from stratagem.cluster_resolver._tpu import TPUClusterResolver
from stratagem.cluster_resolver._union import UnionResolver

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "MPIClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "TorchrunClusterResolver",
    "UnionResolver",
]
