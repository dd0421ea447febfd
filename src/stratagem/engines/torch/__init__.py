# SPDX-License-Identifier: Apache-2.0
"""The torch engine: one process per replica, joined by shared memory, gloo or NCCL."""

from __future__ import annotations

from stratagem.engines.torch._engine import TorchEngine as TorchEngine
