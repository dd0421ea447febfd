# SPDX-License-Identifier: Apache-2.0
"""`TFConfigClusterResolver`: what it takes from TF_CONFIG, and which of its tasks train in step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratagem._core.cluster import Cluster
from stratagem.cluster_resolver import ClusterSpec, TFConfigClusterResolver
from stratagem.cluster_resolver import _tf_config as tf_config
from stratagem.errors import ArgumentError

JOBS = {
    "chief": ["c.train.svc:2222"],
    "worker": ["w0.train.svc:2222", "w1.train.svc:2222"],
    "ps": ["p.train.svc:2222"],
    "evaluator": ["e.train.svc:2222"],
}


def set_config(monkeypatch: pytest.MonkeyPatch, **config: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


@pytest.mark.parametrize(("task_type", "index"), [("chief", 0), ("worker", 1), ("ps", "0"), ("evaluator", 0)])
def test_every_job_and_an_index_as_text_are_read(monkeypatch: pytest.MonkeyPatch, task_type: str, index: Any) -> None:
    set_config(monkeypatch, cluster=JOBS, task={"type": task_type, "index": index}, environment="cloud")
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec(JOBS)
    assert (resolver.task_type, resolver.task_id) == (task_type, int(index))
    assert (resolver.environment, resolver.rpc_layer) == ("", None)
    assert resolver.master() == JOBS[task_type][int(index)]
    assert resolver.local_tasks() == (0, 1)


def test_arguments_win_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, cluster=JOBS, task={"type": "chief", "index": 0}, rpc_layer="grpc")
    resolver = TFConfigClusterResolver(task_type="worker", task_id=1, rpc_layer="http", environment="lab")
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer, resolver.environment) == (
        "worker",
        1,
        "http",
        "lab",
    )
    assert resolver.master() == "http://w1.train.svc:2222"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "ps", 0, "grpc"
    assert resolver.master() == "grpc://p.train.svc:2222"
    assert resolver.master("worker", 0, "x") == "x://w0.train.svc:2222"


def test_the_variable_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = TFConfigClusterResolver()
    assert (resolver.cluster_spec(), resolver.task_type, resolver.task_id) == (ClusterSpec({}), None, None)
    assert (resolver.master(), resolver.rpc_layer) == ("", None)
    set_config(monkeypatch, cluster=JOBS, task={"type": "worker", "index": 1}, rpc_layer="grpc")
    assert (resolver.task_id, resolver.master()) == (1, "grpc://w1.train.svc:2222")


def test_one_task_alone_has_no_master_and_session_master_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, cluster={"worker": ["w:1"]}, task={"type": "worker", "index": 0})
    assert TFConfigClusterResolver().master() == ""
    set_config(monkeypatch, cluster=JOBS, session_master="grpc://m:1")
    assert TFConfigClusterResolver().master("worker", 0) == "grpc://m:1"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{'cluster': {}}", "TF_CONFIG is not JSON"),
        ('["worker"]', "TF_CONFIG is not a dict"),
        ('{"cluster": ["a:1"]}', "TF_CONFIG has a cluster or a task that is not a dict"),
        ('{"cluster": {"worker": "a:1"}}', "TF_CONFIG has no list of addresses for 'worker'"),
        ('{"cluster": {"worker": [1]}}', "TF_CONFIG has no list of addresses for 'worker'"),
    ],
)
def test_what_tensorflow_does_not_read_is_refused_with_an_example(
    monkeypatch: pytest.MonkeyPatch, config: str, text: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ArgumentError, match=f'{text}.*\n  fix: TF_CONFIG=\'{{"cluster"'):
        TFConfigClusterResolver().cluster_spec()


def test_an_index_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, cluster=JOBS, task={"type": "worker", "index": "first"})
    with pytest.raises(ArgumentError, match="TF_CONFIG has the task index 'first', which is no number"):
        _ = TFConfigClusterResolver().task_id


def test_who_does_not_say_which_task_it_is_has_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, cluster=JOBS)
    with pytest.raises(ArgumentError, match='does not say which task this process is\n  fix: add "task"'):
        TFConfigClusterResolver().master()


def test_two_tasks_with_one_address_do_not_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, cluster={"chief": ["a:1"], "worker": ["b:1", "a:1"]}, task={"type": "chief"})
    with pytest.raises(ArgumentError, match="chief:0 and worker:1 have the same address a:1\n  fix: give each task"):
        tf_config.from_tf_config()


def test_numbered_tasks_train_under_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, cluster={"worker": {"4": "d:1", "2": "b:1"}}, task={"type": "worker", "index": 4})
    tasks = (("worker:2", "b:1"), ("worker:4", "d:1"))
    assert tf_config.from_tf_config() == Cluster(tasks=tasks, rank=1)
    assert tf_config.cluster_of(TFConfigClusterResolver().cluster_spec().as_dict(), "worker", 2) == Cluster(
        tasks=tasks, rank=0
    )
