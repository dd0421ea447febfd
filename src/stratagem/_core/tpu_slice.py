# SPDX-License-Identifier: Apache-2.0
"""The TPU slices that there are, by libtpu's names for them: "v5e:2x4" is eight v5e chips."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stratagem.errors import ArgumentError

__all__ = ["KINDS", "Kind", "Slice"]

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One generation of TPUs.

    Attributes:
        dimensions: How many numbers the shape of a slice has.
        devices_per_chip: How many devices JAX sees in a chip: one per core, unless cores work as one.
        hbm_gib: The memory of one device.
        pci_id: What the chip calls itself on the PCI bus, where that is public.
        chip_config: The name of libtpu's way to divide a chip where its default is not what a TPU VM has.
    """

    dimensions: int
    devices_per_chip: int
    hbm_gib: int
    pci_id: str | None
    chip_config: str | None = None


# Memory as Google publishes it per chip, on the page of each generation below https://cloud.google.com/tpu/docs/
# (v2 16 GB, v3 32 GB, v4 32 GB, v5e 16 GB, v5p 95 GB, v6e 32 GB, TPU7x 192 GB), divided by its devices.
# PCI ids are those of jax/_src/hardware_utils.py, which does not tell v2 from v3.
KINDS = {
    "v2": Kind(dimensions=2, devices_per_chip=2, hbm_gib=8, pci_id=None),
    "v3": Kind(dimensions=2, devices_per_chip=2, hbm_gib=16, pci_id="0x0027"),
    "v4": Kind(dimensions=3, devices_per_chip=1, hbm_gib=32, pci_id="0x005e", chip_config="megacore"),
    "v5e": Kind(dimensions=2, devices_per_chip=1, hbm_gib=16, pci_id="0x0063"),
    "v5p": Kind(dimensions=3, devices_per_chip=1, hbm_gib=95, pci_id="0x0062"),
    "v6e": Kind(dimensions=2, devices_per_chip=1, hbm_gib=32, pci_id="0x006f"),
    "tpu7x": Kind(dimensions=3, devices_per_chip=2, hbm_gib=96, pci_id="0x0076"),
}

_NAME = re.compile(r"(?P<kind>[a-z0-9]+):(?P<shape>\d+(x\d+)*)")
# What Google Cloud calls a slice, "v5litepod-8", has the number of chips (v2 to v4: cores) and not their shape.
_ACCELERATOR = re.compile(r"(?P<kind>[a-z0-9]+)-(?P<count>\d+)")
_CLOUD_KINDS = {"v5litepod": "v5e"}
_FLAT_SHAPES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """TPU chips that train together.

    Attributes:
        name: As libtpu takes it, such as "v5e:2x4".
        kind: The generation, such as "v5e".
        shape: Chips in each dimension.
    """

    name: str
    kind: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, name: str) -> Slice:
        """Read a name.

        Raises:
            ArgumentError: it is none; the fix has one that is.

        >>> Slice.parse("v5e:2x4").num_devices
        8
        """
        found = _NAME.fullmatch(name.strip().lower())
        if found is None or found["kind"] not in KINDS:
            raise ArgumentError(f"{name!r} is not a TPU topology", fix=_better(name))
        shape = tuple(int(size) for size in found["shape"].split("x"))
        dimensions = KINDS[found["kind"]].dimensions
        if len(shape) != dimensions or 0 in shape:
            example = "x".join("2" * dimensions)
            raise ArgumentError(
                f"the shape of {name!r} has not the {dimensions} dimensions of a {found['kind']} slice",
                fix=f"such as {found['kind']}:{example}",
            )
        return cls(name=found[0], kind=found["kind"], shape=shape)

    @property
    def num_chips(self) -> int:
        """Its chips."""
        return math.prod(self.shape)

    @property
    def num_devices(self) -> int:
        """Its devices, as JAX counts them: the replicas of a strategy on all of it."""
        return self.num_chips * KINDS[self.kind].devices_per_chip

    @property
    def hbm_bytes(self) -> int:
        """The memory of one device."""
        return KINDS[self.kind].hbm_gib * _GIB

    @property
    def device_noun(self) -> str:
        """What one device is: "chip", or "core" where a chip has several."""
        return "chip" if KINDS[self.kind].devices_per_chip == 1 else "core"


def _better(name: str) -> str:
    found = _ACCELERATOR.fullmatch(name.strip().lower())
    if found is not None:
        kind = _CLOUD_KINDS.get(found["kind"], found["kind"])
        shape = _FLAT_SHAPES.get(int(found["count"]))
        if kind in KINDS and KINDS[kind].dimensions == 2 and KINDS[kind].devices_per_chip == 1 and shape:
            return f"name it by its shape: {kind}:{shape}"
    return f"name it as KIND:SHAPE, such as v5e:2x4 or v5p:2x2x2; kinds are {', '.join(KINDS)}"
