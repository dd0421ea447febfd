# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's spellings of devices, and what is said about those that are not there."""

from __future__ import annotations

import pytest

from stratagem._core import device_names
from stratagem.errors import ArgumentTypeError, DeviceError

PRESENT = ("GPU:0", "CPU:0", "CPU:1")


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("/gpu:0", "GPU:0"),
        ("GPU:0", "GPU:0"),
        ("gpu:0", "GPU:0"),
        ("cpu:1", "CPU:1"),
        ("/cpu:01", "CPU:1"),
        ("/device:GPU:3", "GPU:3"),
        ("device:CPU:0", "CPU:0"),
        ("TPU:5", "TPU:5"),
        ("/job:localhost/replica:0/task:0/device:GPU:0", "GPU:0"),
        ("/job:worker/replica:0/task:0/device:GPU:12", "GPU:12"),
        ("/job:worker/task:0/gpu:1", "GPU:1"),
        (" GPU:0 ", "GPU:0"),
    ],
)
def test_every_spelling_has_one_short_form(name: str, canonical: str) -> None:
    assert device_names.canonical(name) == canonical
    assert device_names.canonical(device_names.full(canonical)) == canonical


@pytest.mark.parametrize("name", ["", "GPU", "GPU:", "gpu:a", "cuda:0", "GPU:0,GPU:1", "GPU:-1", "/job:x"])
def test_what_is_no_device_name_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="is not a device name") as caught:
        device_names.canonical(name)
    assert repr(name) in str(caught.value)


def test_a_device_of_another_task_is_refused() -> None:
    with pytest.raises(DeviceError, match="is a device of another task than task 0"):
        device_names.canonical("/job:worker/replica:0/task:1/device:GPU:0")


def test_a_number_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="a device is 0, not a string"):
        device_names.canonical(0)


def test_those_present_pass() -> None:
    device_names.check_present(("CPU:1", "GPU:0"), PRESENT)


def test_an_absent_device_is_named_with_those_present() -> None:
    with pytest.raises(DeviceError, match="this host has no GPU:1; it has GPU:0, CPU:0, CPU:1"):
        device_names.check_present(("GPU:0", "GPU:1"), PRESENT)


def test_more_cpus_can_be_had() -> None:
    with pytest.raises(DeviceError, match="set STRATAGEM_CPU_DEVICES=4") as caught:
        device_names.check_present(("CPU:2", "CPU:3"), PRESENT)
    assert "this host has no CPU:2, CPU:3" in str(caught.value)


def test_a_device_named_twice_is_refused() -> None:
    with pytest.raises(DeviceError, match="CPU:0 is named more than once"):
        device_names.check_present(("CPU:0", "CPU:0"), PRESENT)
