# SPDX-License-Identifier: Apache-2.0
"""Whether TPU chips are attached to this machine, found out without starting JAX and without the network."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratagem._core.tpu_slice import KINDS

__all__ = ["NO_TPU_HERE", "Hardware", "look"]

_GOOGLE = "0x1ae0"
_LIBRARY = "TPU_LIBRARY_PATH"
# Written by jax itself, on machines without a TPU too.
_NOT_EVIDENCE = {_LIBRARY, "TPU_SKIP_MDS_QUERY", "TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION"}

# Where there is no TPU, libtpu says so at length when it is loaded, unless these are set. Nothing follows from the
# values: no device is made of them, and what is compiled for is given in full.
NO_TPU_HERE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else the second process on this machine is refused
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What was found.

    Attributes:
        num_chips: TPU chips of this machine.
        num_on_pci: Of those, the ones that the PCI bus shows.
        device_files: Files below /dev that a TPU's driver makes.
        libtpu: Whether the library that drives TPUs is there.
        variables: Names of variables that TPU VMs set.
    """

    num_chips: int
    num_on_pci: int
    device_files: tuple[str, ...]
    libtpu: bool
    variables: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Google chips on the PCI bus ({self.num_on_pci or 'none'}), "
            f"/dev/accel* and /dev/vfio/* ({', '.join(self.device_files) or 'none'}), "
            f"the package libtpu ({'installed' if self.libtpu else 'not installed'}), "
            f"variables TPU_* ({', '.join(self.variables) or 'none'})"
        )


def look(environ: Mapping[str, str], root: Path = Path("/")) -> Hardware:
    """Look for TPU chips.

    Args:
        environ: The variables to look through.
        root: The folder that holds `dev` and `sys`.
    """
    on_pci = _on_pci(root / "sys/bus/pci/devices")
    accel = _numbered(root / "dev", "accel")
    vfio = _numbered(root / "dev/vfio", "")
    variables = tuple(sorted(name for name in environ if name.startswith("TPU_") and name not in _NOT_EVIDENCE))
    # Other hardware is handed to virtual machines through vfio too, so those files alone are no evidence.
    num_chips = on_pci or len(accel) or (len(vfio) if variables else 0)
    return Hardware(
        num_chips=num_chips,
        num_on_pci=on_pci,
        device_files=tuple(f"/{path.relative_to(root)}" for path in (*accel, *vfio)),
        libtpu=importlib.util.find_spec("libtpu") is not None or Path(environ.get(_LIBRARY, "")).is_file(),
        variables=variables,
    )


def _on_pci(devices: Path) -> int:
    known = {kind.pci_id for kind in KINDS.values()}
    return sum(
        vendor.read_text().strip() == _GOOGLE and vendor.with_name("device").read_text().strip() in known
        for vendor in devices.glob("*/vendor")
    )


def _numbered(folder: Path, prefix: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{prefix}[0-9]*") if path.name.removeprefix(prefix).isdigit())
