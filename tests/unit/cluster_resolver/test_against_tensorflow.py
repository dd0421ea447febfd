# SPDX-License-Identifier: Apache-2.0
"""The resolvers beside those of TensorFlow: the same questions, the same answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import stratagem.cluster_resolver as ours
from stratagem.errors import ArgumentError

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

CLUSTERS: tuple[dict[str, Any], ...] = (
    {},
    {"worker": []},
    {"worker": ["a:1", "b:1"], "ps": ("p:1",)},
    {"worker": {0: "a:1", 1: "b:1"}},
    {"worker": {4: "e:1", 1: "b:1"}, "chief": ["c:1"]},
)
CONFIGS = (
    {},
    {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
    {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "1"}},
    {"cluster": {"worker": ["a:1"], "chief": ["c:1"]}, "task": {"type": "chief", "index": 0}, "rpc_layer": "grpc"},
    {"cluster": {"worker": {"1": "b:1"}, "ps": ["p:1"]}, "task": {"type": "ps", "index": 0}, "environment": "cloud"},
    {"cluster": {"worker": ["a:1", "b:1"]}, "session_master": "grpc://m:1"},
)
STEP = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "m5,n[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "1,2(x2)",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """TensorFlow's names: its resolvers, and ClusterSpec among them as it is among ours."""
    import tensorflow as tf

    names = {name: getattr(tf.distribute.cluster_resolver, name) for name in dir(tf.distribute.cluster_resolver)}
    return SimpleNamespace(**(names | {"ClusterSpec": tf.train.ClusterSpec}))


def answers(resolver: Any, *, accelerators: bool = True) -> dict[str, Any]:
    return {
        "cluster_spec": resolver.cluster_spec().as_dict(),
        "task": (resolver.task_type, resolver.task_id),
        "rpc_layer": resolver.rpc_layer,
        "environment": resolver.environment or "",  # TFConfigClusterResolver answers None there
        "master": answer(resolver.master),
        "master of worker 1": answer(resolver.master, "worker", 1),
        "master over http": answer(resolver.master, "worker", 1, "http"),
        "accelerators": dict(resolver.num_accelerators()) if accelerators else None,
    }


def answer(ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except ValueError:
        return "ValueError"


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_a_cluster_spec_answers_the_same(theirs: Any, cluster: dict[str, Any]) -> None:
    def told(spec: Any) -> Any:
        return (
            sorted(spec.jobs),
            spec.as_dict(),
            bool(spec),
            [(job, spec.num_tasks(job), spec.task_indices(job)) for job in sorted(spec.jobs)],
            [spec.job_tasks(job) for job in sorted(spec.jobs) if spec.num_tasks(job)],
            answer(spec.task_address, "worker", 1),
            answer(spec.task_address, "worker", 9),
            answer(spec.job_tasks, "evaluator"),
            [spec == type(spec)(other) for other in CLUSTERS],
            spec == type(spec)(spec),
        )

    assert told(ours.ClusterSpec(cluster)) == told(theirs.ClusterSpec(cluster))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_tf_config_is_read_the_same(theirs: Any, monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    for options in ({}, {"task_type": "worker", "task_id": 1, "rpc_layer": "x", "environment": "lab"}):
        # TensorFlow counts this machine's devices there.
        mine, tensorflows = (
            answers(names.TFConfigClusterResolver(**options), accelerators=False) for names in (ours, theirs)
        )
        assert mine == tensorflows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"master": "m:1", "rpc_layer": "grpc"},
        {"task_type": "worker", "task_id": 1, "environment": "lab", "num_accelerators": {"GPU": 8}},
    ],
    ids=str,
)
def test_a_simple_resolver_answers_the_same(theirs: Any, options: Any) -> None:
    mine, tensorflows = (
        answers(names.SimpleClusterResolver(names.ClusterSpec(cluster), **options))
        for cluster in CLUSTERS[2:3]
        for names in (ours, theirs)
    )
    assert mine == tensorflows


@pytest.mark.parametrize("first", CLUSTERS, ids=str)
@pytest.mark.parametrize("second", CLUSTERS, ids=str)
def test_a_union_is_the_same_or_refused_by_both(theirs: Any, first: Any, second: Any) -> None:
    def union(names: Any, error: type[Exception]) -> Any:
        resolver = names.UnionResolver(
            names.SimpleClusterResolver(names.ClusterSpec(first), task_type="worker", task_id=1, rpc_layer="grpc"),
            names.SimpleClusterResolver(names.ClusterSpec(second), task_type="ps", num_accelerators={"GPU": 1}),
            task_type="chief",
        )
        try:
            return answers(resolver)
        except error:
            return "refused"

    assert union(ours, ArgumentError) == union(theirs, KeyError)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gpus_per_task": 1, "rpc_layer": "http"},
        {"jobs": {"worker": 4, "ps": 1}, "port_base": 2000, "tasks_per_node": {"m5": 1, "n07": 2, "n08": 2}},
        {"jobs": {"worker": 6}, "tasks_per_node": 2},
    ],
    ids=str,
)
def test_a_step_of_slurm_is_read_the_same(theirs: Any, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    mine = ours.SlurmClusterResolver(**options)
    tensorflows = theirs.SlurmClusterResolver(**options)
    variables = mine.device_variables()
    spec = tensorflows.cluster_spec()  # only now it knows its task, and sets CUDA_VISIBLE_DEVICES
    assert mine.cluster_spec().as_dict() == spec.as_dict()
    assert mine.get_task_info() == tensorflows.get_task_info()
    assert answers(mine) == answers(tensorflows)
    assert variables == {"CUDA_VISIBLE_DEVICES": os.environ["CUDA_VISIBLE_DEVICES"]}


def test_pods_are_found_the_same_where_pods_have_their_nodes_addresses(theirs: Any) -> None:
    pods = [
        SimpleNamespace(
            metadata=SimpleNamespace(name=f"a-{index}"),
            status=SimpleNamespace(phase="Running", pod_ip=f"10.0.0.{index}", host_ip=f"10.0.0.{index}"),
        )
        for index in (2, 1)
    ]
    client = SimpleNamespace(list_pod_for_all_namespaces=lambda label_selector: SimpleNamespace(items=pods))
    mine, tensorflows = (
        names.KubernetesClusterResolver({"worker": ["job-name=a"]}, override_client=client, tf_server_port=2222)
        for names in (ours, theirs)
    )
    assert answers(mine, accelerators=False) == answers(tensorflows, accelerators=False)
    mine.task_type = tensorflows.task_type = "worker"
    mine.task_id = tensorflows.task_id = 0
    assert answers(mine, accelerators=False) == answers(tensorflows, accelerators=False)
