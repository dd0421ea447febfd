# SPDX-License-Identifier: Apache-2.0
"""Environments of launchers, as the tests of the resolvers set them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest

LAUNCHERS = (
    "COORDINATOR_",
    "CUDA_VISIBLE_DEVICES",
    "GROUP_RANK",
    "HOSTNAME",
    "JAX_",
    "JOB",
    "KUBERNETES_",
    "LOCAL_",
    "MASTER_",
    "MPI",
    "MV2_",
    "NUM_PROCESSES",
    "OMPI_",
    "PET_",
    "PMI",
    "PROCESS_ID",
    "RANK",
    "REPLICATED_JOB_NAME",
    "SLURM",
    "TF_CONFIG",
    "TORCHELASTIC_",
    "WORLD_SIZE",
)


@pytest.fixture
def started_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """`started_with(variables)`: a process with these variables of launchers, and no others."""

    def start(variables: Mapping[str, str]) -> None:
        for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return start
