# SPDX-License-Identifier: Apache-2.0
"""D06: which cluster the doctor looks at, and whether its addresses can be those of one."""

from __future__ import annotations

import json

import pytest

from stratagem._core.cluster import Cluster
from stratagem.doctor import Request, Verdict, _cluster
from stratagem.errors import ArgumentError


def cluster(*addresses: str) -> Cluster:
    return Cluster(tasks=tuple((f"worker:{index}", address) for index, address in enumerate(addresses)), rank=0)


def test_this_worker_is_the_one_with_an_address_of_this_host() -> None:
    # 203.0.113.0/24 is for documentation: nobody has it.
    found = _cluster.from_workers("203.0.113.1:2222, 127.0.0.1:2222,203.0.113.2:2222", None)
    assert (found.rank, found.tasks[1]) == (1, ("worker:1", "127.0.0.1:2222"))


@pytest.mark.parametrize(
    ("workers", "index", "text"),
    [
        ("host-a,host-b:2222", None, "--workers has 'host-a', which is no host:port"),
        ("host-a:0,host-b:2222", None, "--workers has 'host-a:0'"),
        ("host-a:2222,", None, "--workers has ''"),
        ("host-a:2222", None, "names one worker"),
        ("203.0.113.1:1,203.0.113.2:1", 2, "--task-index 2 is none of the 2 workers"),
        ("203.0.113.1:1,203.0.113.2:1", None, "none of the workers has an address of this host"),
        ("127.0.0.1:1,127.0.0.1:2", None, "2 of the workers have an address of this host"),
    ],
)
def test_workers_that_can_not_be_a_cluster_are_refused(workers: str, index: int | None, text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        _cluster.from_workers(workers, index)
    assert text in raised.value.problem
    assert raised.value.fix


@pytest.mark.parametrize("options", [{"task_index": 1}, {"timeout_seconds": 0.0}])
def test_options_that_say_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        Request(**options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("addresses", "verdict", "text"),
    [
        (("host-a:2222", "host-b:2222"), Verdict.OK, "2 tasks from TF_CONFIG, this one is worker:0"),
        (("host-a:2222", "host-b"), Verdict.FAILED, "the address 'host-b' of worker:1 names no port"),
        (("host-a:2222", "host-a:2222"), Verdict.FAILED, "worker:0 and worker:1 have the same address host-a:2222"),
        (("host-a:2222", "localhost:2222"), Verdict.FAILED, "worker:1 can't be reached from other hosts at localhost"),
        (("localhost:1", "127.0.0.1:2"), Verdict.WARNING, "no other host can take part"),
    ],
)
def test_addresses_that_can_not_work_are_named(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...], verdict: Verdict, text: str
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    check = _cluster.cluster_check(cluster(*addresses), "TF_CONFIG")
    assert (check.verdict, text in check.text) == (verdict, True), check


def test_the_cluster_comes_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": "0"}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    found, check = _cluster.from_environment()
    assert found == Cluster(tasks=(("chief:0", "a:1"), ("worker:0", "b:2")), rank=1)
    assert check.verdict is Verdict.OK


def test_a_cluster_that_can_not_be_called_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["a:1", "b"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    found, check = _cluster.from_environment()
    assert (found, check.verdict) == (None, Verdict.FAILED)


def test_workers_other_than_those_of_tf_config_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert _cluster.cluster_check(cluster("a:1", "b:1"), "--workers").verdict is Verdict.OK
    check = _cluster.cluster_check(cluster("a:1", "c:1"), "--workers")
    assert check.verdict is Verdict.WARNING
    assert "your program reads TF_CONFIG: its tasks are at a:1, b:1" in check.text
