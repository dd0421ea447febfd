# SPDX-License-Identifier: Apache-2.0
"""The names of TPU slices."""

from __future__ import annotations

import pytest

from stratagem._core.tpu_slice import KINDS, Slice
from stratagem.errors import ArgumentError

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "chips", "devices", "hbm_gib", "noun"),
    [
        ("v5e:2x4", 8, 8, 16, "chip"),
        ("V5E:4x4 ", 16, 16, 16, "chip"),
        ("v4:2x2x2", 8, 8, 32, "chip"),  # its two cores work as one
        ("v5p:2x2x1", 4, 4, 95, "chip"),
        ("v6e:2x4", 8, 8, 32, "chip"),
        ("v3:2x2", 4, 8, 16, "core"),
        ("tpu7x:2x2x1", 4, 8, 96, "core"),
    ],
)
def test_a_slice_has_chips_devices_and_memory(name: str, chips: int, devices: int, hbm_gib: int, noun: str) -> None:
    found = Slice.parse(name)
    assert found.name == name.strip().lower()
    assert (found.num_chips, found.num_devices) == (chips, devices)
    assert (found.hbm_bytes, found.device_noun) == (hbm_gib * GIB, noun)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("v5e-8", "name it by its shape: v5e:2x4"),
        ("v5litepod-16", "name it by its shape: v5e:4x4"),
        ("v5e-7", "name it as KIND:SHAPE"),
        ("v5p-8", "name it as KIND:SHAPE"),
        ("v9:2x2", "name it as KIND:SHAPE, such as v5e:2x4 or v5p:2x2x2; kinds are v2, v3, v4"),
        ("", "name it as KIND:SHAPE"),
    ],
)
def test_another_name_is_refused_with_one_that_is_right(name: str, fix: str) -> None:
    with pytest.raises(ArgumentError, match="is not a TPU topology") as raised:
        Slice.parse(name)
    assert fix in str(raised.value)


@pytest.mark.parametrize(
    ("name", "example"), [("v5e:2x2x2", "v5e:2x2"), ("v4:2x2", "v4:2x2x2"), ("v5e:0x4", "v5e:2x2")]
)
def test_a_shape_that_the_kind_can_not_have_is_refused(name: str, example: str) -> None:
    with pytest.raises(ArgumentError, match=r"has not the \d dimensions of a v") as raised:
        Slice.parse(name)
    assert raised.value.fix == f"such as {example}"


def test_chips_can_be_told_apart_on_the_pci_bus() -> None:
    ids = [kind.pci_id for kind in KINDS.values() if kind.pci_id]
    assert len(set(ids)) == len(ids)
