# SPDX-License-Identifier: Apache-2.0
"""Looking for a TPU on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem.cluster_resolver import _tpu_hardware
from stratagem.cluster_resolver._tpu_hardware import look


def pci(root: Path, *devices: tuple[str, str]) -> None:
    for number, (vendor, device) in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:00:0{number}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")


def files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_a_machine_without_a_tpu_has_no_chips_and_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tpu_hardware.importlib.util, "find_spec", lambda name: None)
    found = look({}, tmp_path)
    assert found.num_chips == 0
    assert str(found) == (
        "Google chips on the PCI bus (none), /dev/accel* and /dev/vfio/* (none), the package libtpu (not installed), "
        "variables TPU_* (none)"
    )


def test_chips_are_counted_on_the_pci_bus(tmp_path: Path) -> None:
    # A v5e chip, another, a network card of Google's, and a chip of another maker with the same number.
    pci(tmp_path, ("0x1ae0", "0x0063"), ("0x1ae0", "0x0063"), ("0x1ae0", "0x0042"), ("0x10de", "0x0063"))
    assert look({}, tmp_path).num_chips == 2


def test_chips_are_counted_by_their_device_files_where_the_bus_is_hidden(tmp_path: Path) -> None:
    files(tmp_path, "dev/accel0", "dev/accel1", "dev/accelerate", "dev/accel/accel0")
    found = look({}, tmp_path)
    assert (found.num_chips, found.device_files) == (2, ("/dev/accel0", "/dev/accel1"))


def test_vfio_files_alone_are_no_evidence(tmp_path: Path) -> None:
    files(tmp_path, "dev/vfio/0", "dev/vfio/1", "dev/vfio/vfio")
    assert look({}, tmp_path).num_chips == 0
    assert look({"TPU_SKIP_MDS_QUERY": "1"}, tmp_path).num_chips == 0  # jax sets it everywhere
    found = look({"TPU_ACCELERATOR_TYPE": "v5litepod-4"}, tmp_path)
    assert (found.num_chips, found.variables) == (2, ("TPU_ACCELERATOR_TYPE",))


def test_libtpu_may_be_a_file_that_a_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tpu_hardware.importlib.util, "find_spec", lambda name: None)
    files(tmp_path, "libtpu.so")
    assert look({"TPU_LIBRARY_PATH": str(tmp_path / "libtpu.so")}, tmp_path).libtpu
    assert not look({"TPU_LIBRARY_PATH": str(tmp_path / "other.so")}, tmp_path).libtpu
