# SPDX-License-Identifier: Apache-2.0
"""`stratagem devices`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratagem.cli import _devices
from tests.processes import started, stratagem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def test_devices_lists_logical_cpu_devices_where_there_is_no_gpu(tmp_path: Path) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": "", "STRATAGEM_CPU_DEVICES": "2", "COLUMNS": "120"}
    with started(stratagem("devices"), tmp_path, variables) as program:
        code, out, err = program.finish()
    assert (code, err) == (0, "")
    assert "Keras backend: torch" in out
    assert [name for name in ("CPU:0", "CPU:1", "CPU:2", "GPU:0") if name in out] == ["CPU:0", "CPU:1"]


def test_devices_refuses_a_backend_that_has_no_engine(tmp_path: Path) -> None:
    with started(stratagem("devices"), tmp_path, {"KERAS_BACKEND": "tensorflow"}) as program:
        code, out, err = program.finish()
    assert (code, out) == (2, "")
    assert "the Keras backend is 'tensorflow'" in err


@pytest.mark.parametrize(
    ("visible", "models"),
    [
        (None, {"0": "NVIDIA A, 1 MiB", "1": "NVIDIA B, 2 MiB"}),
        ("1,GPU-aa", {"0": "NVIDIA B, 2 MiB", "1": "NVIDIA A, 1 MiB"}),
        ("", {}),
    ],
)
def test_gpus_are_described_in_the_order_that_cuda_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, models: dict[str, str]
) -> None:
    _nvidia_smi(tmp_path, "printf '0, GPU-aa1, NVIDIA A, 1 MiB\\n1, GPU-bb2, NVIDIA B, 2 MiB\\n'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _devices._gpu_models() == models


def test_a_driver_that_does_not_answer_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _nvidia_smi(tmp_path, "exit 9")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert _devices._gpu_models() == {}


def _nvidia_smi(folder: Path, command: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
