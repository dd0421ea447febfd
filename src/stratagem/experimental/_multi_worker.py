# SPDX-License-Identifier: Apache-2.0
"""The older name of `MultiWorkerMirroredStrategy`."""

from __future__ import annotations

from stratagem import strategies
from stratagem._core.options import CommunicationImplementation, CommunicationOptions
from stratagem.cluster_resolver import ClusterResolver

__all__ = ["MultiWorkerMirroredStrategy"]


class MultiWorkerMirroredStrategy(strategies.MultiWorkerMirroredStrategy):
    """`MultiWorkerMirroredStrategy` with its older arguments.

    Args:
        communication: What carries collectives, accepted as in `tf.distribute`.
        cluster_resolver: As there.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        super().__init__(cluster_resolver, CommunicationOptions(implementation=communication))
