# SPDX-License-Identifier: Apache-2.0
"""The plan of a cluster: which variables each worker gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratagem.errors import ArgumentError, DeviceError
from stratagem.launch import free_ports, plan_task, plan_workers

ARGV = ("python", "train.py")


def workers(ports: tuple[int, ...] = (7001, 7002), **more: Any) -> list[dict[str, str]]:
    options = {"cpu_devices": None, "variables": {}, "environ": {}, "cores": 8, "gpus": 0, **more}
    return [dict(process.variables) for process in plan_workers(ARGV, ports, **options).processes]


def test_each_worker_has_its_own_tf_config() -> None:
    found = [json.loads(one["TF_CONFIG"]) for one in workers()]
    assert [one["task"] for one in found] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert [one["cluster"] for one in found] == [{"worker": ["localhost:7001", "localhost:7002"]}] * 2


def test_a_worker_of_a_cluster_gets_no_place_in_a_job_of_one_host() -> None:
    assert all(not name.startswith("STRATAGEM_") for one in workers() for name in one)


@pytest.mark.parametrize(
    ("cpu_devices", "environ", "threads"), [(None, {}, "4"), (2, {}, "2"), (None, {"OMP_NUM_THREADS": "3"}, None)]
)
def test_workers_on_one_cpu_divide_its_cores(
    cpu_devices: int | None, environ: dict[str, str], threads: str | None
) -> None:
    assert [one.get("OMP_NUM_THREADS") for one in workers(cpu_devices=cpu_devices, environ=environ)] == [threads] * 2


@pytest.mark.parametrize(
    ("gpus", "environ", "expected"),
    [
        (4, {}, ["0,1", "2,3"]),
        (2, {"CUDA_VISIBLE_DEVICES": "5,7"}, ["5", "7"]),
    ],
)
def test_workers_of_one_host_divide_its_gpus(gpus: int, environ: dict[str, str], expected: list[str]) -> None:
    assert [one["CUDA_VISIBLE_DEVICES"] for one in workers(gpus=gpus, environ=environ)] == expected


def test_more_workers_than_gpus_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"2 workers were asked for, but this host has 1 GPU\n.*--cpu-devices 1"):
        workers(gpus=1)
    assert "CUDA_VISIBLE_DEVICES" not in workers(gpus=1, cpu_devices=1)[0]


def test_one_of_several_hosts_starts_its_own_worker_only() -> None:
    plan = plan_task(ARGV, ["a", "b:7", "c"], 1, cpu_devices=None, variables={}, environ={})
    (process,) = plan.processes
    assert json.loads(dict(process.variables)["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:2222", "b:7", "c:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (process.rank, plan.count, plan.noun) == (1, 3, "worker")
    assert "[worker 1/3] " in str(plan)


@pytest.mark.parametrize(
    ("hosts", "index", "text"),
    [
        (["a", "b"], 2, "there is no worker 2; 2 hosts were named"),
        ([], 0, "there is no worker 0; 0 hosts were named"),
        (["a", "a:2222"], 0, "a:2222 is named twice"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(hosts: list[str], index: int, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        plan_task(ARGV, hosts, index, cpu_devices=None, variables={}, environ={})


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5
