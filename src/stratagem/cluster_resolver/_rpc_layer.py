# SPDX-License-Identifier: Apache-2.0
"""The base of the resolvers that know a protocol."""

from __future__ import annotations

from stratagem.cluster_resolver._base import ClusterResolver

__all__ = ["RpcLayerResolver"]


class RpcLayerResolver(ClusterResolver):
    """A resolver that puts a protocol before addresses."""

    _rpc_layer: str | None = None

    @property
    def rpc_layer(self) -> str | None:
        """The protocol that `master` puts before an address, or None."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer
