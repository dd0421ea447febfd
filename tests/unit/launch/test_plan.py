# SPDX-License-Identifier: Apache-2.0
"""What a job is made of, for every wish and every machine."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem.errors import ArgumentError, DeviceError
from stratagem.launch import Placement, place, plan


def _place(**wishes: Any) -> Placement:
    return place(**{"replicas": None, "cpu_devices": None, "backend": "torch", "environ": {}, "gpus": 0, **wishes})


@pytest.mark.parametrize(
    ("wishes", "processes", "cpu_devices", "on_cpu"),
    [
        ({}, 1, None, True),
        ({"gpus": 2}, 2, None, False),
        ({"replicas": 3}, 3, 3, True),
        ({"replicas": 2, "gpus": 4}, 2, None, False),
        ({"cpu_devices": 3}, 3, 3, True),
        ({"cpu_devices": 3, "gpus": 1}, 3, 3, True),
        ({"cpu_devices": 3, "replicas": 2}, 2, 3, True),
        ({"environ": {"STRATAGEM_CPU_DEVICES": "5"}}, 5, 5, True),
        ({"environ": {"STRATAGEM_CPU_DEVICES": "5"}, "gpus": 2}, 5, 5, True),
        ({"environ": {"STRATAGEM_CPU_DEVICES": "5"}, "replicas": 2}, 2, 2, True),
        ({"environ": {"STRATAGEM_CPU_DEVICES": "5"}, "cpu_devices": 2}, 2, 2, True),
        ({"backend": "jax"}, 1, None, True),
        ({"backend": "jax", "replicas": 3}, 1, 3, True),
        ({"backend": "jax", "cpu_devices": 3}, 1, 3, True),
        ({"backend": "jax", "gpus": 4}, 1, None, False),
        ({"backend": "jax", "processes": 2}, 2, 2, True),
        ({"backend": "jax", "processes": 2, "cpu_devices": 4}, 2, 4, True),
        ({"backend": "jax", "processes": 4, "environ": {"STRATAGEM_CPU_DEVICES": "4"}}, 4, 4, True),
        ({"backend": "jax", "processes": 2, "cpu_devices": 5, "replicas": 4}, 2, 4, True),
        ({"backend": "jax", "processes": 1, "cpu_devices": 5, "replicas": 4}, 1, 5, True),
        ({"backend": "jax", "processes": 2, "gpus": 4}, 2, None, False),
        ({"processes": 3, "replicas": 3}, 3, 3, True),
    ],
    ids=str,
)
def test_the_number_of_processes_follows_from_the_wish_and_the_machine(
    wishes: dict[str, Any], processes: int, cpu_devices: int | None, on_cpu: bool
) -> None:
    placement = _place(**wishes)
    assert (placement.num_processes, placement.cpu_devices, placement.on_cpu) == (processes, cpu_devices, on_cpu)


@pytest.mark.parametrize(
    ("wishes", "error", "text"),
    [
        ({"replicas": 3, "gpus": 1}, DeviceError, "3 replicas were asked for, but this host has 1 GPU\n"),
        ({"replicas": 3, "gpus": 2}, DeviceError, "this host has 2 GPUs\n  fix: .*--cpu-devices 3"),
        ({"replicas": 2, "cpu_devices": 1}, DeviceError, "this host has 1 logical CPU device\n"),
        ({"replicas": 0}, ArgumentError, "0 replicas were asked for"),
        ({"cpu_devices": -1}, ArgumentError, "-1 cpu devices were asked for"),
        ({"processes": 0}, ArgumentError, "0 processes were asked for"),
        (
            {"processes": 2, "replicas": 4},
            ArgumentError,
            "2 processes were asked for, but with torch each of the 4 replicas is one\n  fix: .*ask for 2 replicas",
        ),
        (
            {"processes": 2, "cpu_devices": 5, "backend": "jax"},
            DeviceError,
            "5 devices can't be divided among 2 processes\n  fix: ask for 4 devices",
        ),
        (
            {"processes": 4, "gpus": 2, "backend": "jax"},
            DeviceError,
            "2 devices can't be divided among 4 processes\n  fix: ask for 4 devices",
        ),
        ({"environ": {"STRATAGEM_CPU_DEVICES": "0"}}, ArgumentError, "STRATAGEM_CPU_DEVICES=0 is not a positive"),
    ],
    ids=str,
)
def test_a_wish_that_the_machine_can_not_fulfil_is_refused(
    wishes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        _place(**wishes)


@pytest.mark.parametrize(
    ("placement", "environ", "threads"),
    [
        (_place(replicas=2), {}, "4"),
        (_place(replicas=3), {}, "2"),
        (_place(replicas=20), {}, "1"),
        (_place(replicas=1), {}, None),
        (_place(replicas=2, gpus=2), {}, None),
        (_place(replicas=2), {"OMP_NUM_THREADS": "3"}, None),
    ],
)
def test_cpu_replicas_share_the_cores_unless_the_user_has_divided_them(
    placement: Placement, environ: dict[str, str], threads: str | None
) -> None:
    made = plan(["python"], placement, environ=environ, cores=8)
    assert [dict(process.variables).get("OMP_NUM_THREADS") for process in made.processes] == [
        threads
    ] * placement.num_processes


def test_each_process_has_its_place_and_the_variables_of_all() -> None:
    made = plan(["python", "x.py"], _place(replicas=2), variables={"A": "b"}, environ={}, cores=1)
    assert [process.rank for process in made.processes] == [0, 1]
    for process in made.processes:
        assert process.argv == ("python", "x.py")
        assert dict(process.variables) == {
            "A": "b",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "STRATAGEM_CPU_DEVICES": "2",
            "STRATAGEM_RANK": str(process.rank),
            "STRATAGEM_REPLICAS": "2",
            "STRATAGEM_WORLD_SIZE": "2",
        }


def test_a_plan_prints_as_lines_for_a_shell() -> None:
    made = plan(["python", "a b.py"], _place(), variables={"A": "$b"}, environ={}, cores=1, directory="/there")
    assert str(made).splitlines() == [
        "1 process",
        "in /there",
        "[replica 0/1] STRATAGEM_RANK=0 STRATAGEM_WORLD_SIZE=1 A='$b' PYTHONUNBUFFERED=1 python 'a b.py'",
    ]


def test_processes_that_hold_several_replicas_are_called_processes() -> None:
    made = plan(["python"], _place(backend="jax", processes=2), environ={}, cores=1)
    assert [line.split("]")[0] for line in str(made).splitlines()] == ["2 processes", "[process 0/2", "[process 1/2"]
