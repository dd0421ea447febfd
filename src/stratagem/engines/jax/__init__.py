# SPDX-License-Identifier: Apache-2.0
"""The jax engine: one process per host, which drives all its devices as one mesh."""

from __future__ import annotations

from stratagem.engines.jax._engine import JaxEngine as JaxEngine
