# SPDX-License-Identifier: Apache-2.0
"""`MultiWorkerMirroredStrategy`: which tasks it finds, and what it says of a TF_CONFIG that can't be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratagem import MultiWorkerMirroredStrategy, experimental
from stratagem._core.cluster import Cluster
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._tf_config import from_tf_config
from stratagem.engines import select
from stratagem.errors import ArgumentError, ArgumentTypeError, LaunchError, NotBuiltError
from stratagem.testing.fake_engine import FakeEngine

TWO = {"chief": ["a:1"], "worker": ["b:2"]}
Set = pytest.MonkeyPatch


def set_config(monkeypatch: Set, config: object) -> None:
    monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))


@pytest.mark.parametrize(
    ("cluster", "task", "tasks", "rank"),
    [
        (TWO, {"type": "chief", "index": 0}, ("chief:0", "worker:0"), 0),
        (TWO, {"type": "worker", "index": "0"}, ("chief:0", "worker:0"), 1),
        ({"worker": ["a:1", "b:2", "c:3"]}, {"type": "worker", "index": 2}, ("worker:0", "worker:1", "worker:2"), 2),
        ({**TWO, "ps": ["c:3"], "evaluator": ["d:4"]}, {"type": "chief"}, ("chief:0", "worker:0"), 0),
    ],
    ids=str,
)
def test_the_tasks_that_train_in_step_are_found(
    monkeypatch: Set, cluster: Any, task: Any, tasks: tuple[str, ...], rank: int
) -> None:
    set_config(monkeypatch, {"cluster": cluster, "task": task})
    found = from_tf_config()
    assert found is not None
    assert tuple(name for name, _ in found.tasks) == tasks
    assert (found.rank, found.chief) == (rank, ("a", 1))


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{}",
        {"cluster": {}, "task": {"type": "worker", "index": 0}},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
        {"cluster": {**TWO, "evaluator": ["d:4"]}, "task": {"type": "evaluator", "index": 0}},
    ],
    ids=str,
)
def test_who_has_nobody_to_train_with_trains_alone(monkeypatch: Set, config: Any) -> None:
    set_config(monkeypatch, config)
    with select.use(FakeEngine(2)):
        assert MultiWorkerMirroredStrategy().num_replicas_in_sync == 2
        assert experimental.MultiWorkerMirroredStrategy().extended.devices == ("CPU:0", "CPU:1")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{", "TF_CONFIG is not JSON: '{'"),
        ("[]", "TF_CONFIG is not a dict"),
        ({"cluster": TWO, "task": []}, "names a cluster, but not which task this process is"),
        ({"cluster": [1]}, "a cluster or a task that is not a dict"),
        ({"cluster": TWO}, "names a cluster, but not which task this process is"),
        ({"cluster": TWO, "task": {"type": "worker", "index": 1}}, "no task worker:1; it has chief:0, worker:0"),
        ({"cluster": TWO, "task": {"type": "worker", "index": "x"}}, "the task index 'x', which is no number"),
        ({"cluster": TWO, "task": {"type": "ps", "index": 0}}, "a task of type 'ps' does not train in step"),
        ({"cluster": {"worker": "a:1"}, "task": {"type": "worker"}}, "no list of addresses for 'worker'"),
        ({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker"}}, "the address 'a' of /worker:0 does not name"),
    ],
    ids=str,
)
def test_a_tf_config_that_can_not_be_used_is_refused_with_an_example(monkeypatch: Set, config: Any, text: str) -> None:
    set_config(monkeypatch, config)
    with pytest.raises(ArgumentError) as caught:
        from_tf_config()
    assert text in str(caught.value)
    assert "\n  fix: " in str(caught.value)


class Resolver(ClusterResolver):
    """A resolver of a user's own."""

    def __init__(self, jobs: dict[str, list[str]], task_type: str | None, task_id: int | None) -> None:
        self._jobs, self._type, self._id = jobs, task_type, task_id

    def cluster_spec(self) -> ClusterSpec:
        return ClusterSpec(self._jobs)

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        return ""

    @property
    def task_type(self) -> str | None:
        return self._type

    @property
    def task_id(self) -> int | None:
        return self._id


class Joining(FakeEngine):
    """Notes the cluster that it is to join."""

    joined: Cluster | None = None

    def join(self, cluster: Cluster) -> None:
        self.joined = cluster


def test_a_resolver_wins_over_tf_config(monkeypatch: Set) -> None:
    set_config(monkeypatch, "not even JSON")
    resolver = Resolver({"worker": ["a:1", "b:2"]}, "worker", 1)
    with select.use(Joining(4)) as engine:
        strategy = MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    assert isinstance(engine, Joining)
    assert engine.joined == Cluster(tasks=(("worker:0", "a:1"), ("worker:1", "b:2")), rank=1)
    assert strategy.cluster_resolver is resolver
    assert strategy.extended.worker_devices[1:3] == (
        "/job:worker/replica:0/task:0/device:CPU:1",
        "/job:worker/replica:0/task:1/device:CPU:0",
    )


def test_what_is_no_resolver_or_does_not_say_who_it_is_is_refused() -> None:
    with select.use(FakeEngine(1)):
        with pytest.raises(ArgumentTypeError, match="cluster_resolver='host' is not a ClusterResolver"):
            MultiWorkerMirroredStrategy("host")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="the Resolver does not say which task this process is"):
            MultiWorkerMirroredStrategy(Resolver({"worker": ["a:1", "b:2"]}, None, None))
        assert MultiWorkerMirroredStrategy(Resolver({}, None, None)).num_replicas_in_sync == 1
        with pytest.raises(ArgumentTypeError, match="is not a CommunicationOptions"):
            MultiWorkerMirroredStrategy(communication_options="NCCL")  # type: ignore[arg-type]


def test_an_engine_that_can_not_join_hosts_says_so() -> None:
    with (
        select.use(FakeEngine(1)),
        pytest.raises(NotBuiltError, match="a job of 2 hosts is not built yet with"),
    ):
        MultiWorkerMirroredStrategy(Resolver({"worker": ["a:1", "b:2"]}, "worker", 0))


def test_a_cluster_and_several_processes_of_a_launcher_do_not_go_together(monkeypatch: Set) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("JOB_DIR", "/nowhere")):
        monkeypatch.setenv(f"STRATAGEM_{name}", value)
    with select.use(FakeEngine(2)), pytest.raises(LaunchError, match="has 2 tasks, and this one was started as 2 proc"):
        MultiWorkerMirroredStrategy(Resolver({"worker": ["a:1", "b:2"]}, "worker", 0))
