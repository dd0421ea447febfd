# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of programs that run on several replicas."""

from __future__ import annotations

from stratagem.launch import ReplicaPool as ReplicaPool
from stratagem.testing._run import run_replicas as run_replicas
from stratagem.testing._same import assert_same_on_all_replicas as assert_same_on_all_replicas

__all__ = ["ReplicaPool", "assert_same_on_all_replicas", "run_replicas"]
