# SPDX-License-Identifier: Apache-2.0
"""Clusters that a program describes, and several of them as one."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem.cluster_resolver import ClusterResolver, ClusterSpec, SimpleClusterResolver, UnionResolver
from stratagem.errors import ArgumentError, ArgumentTypeError

WORKERS = ClusterSpec({"worker": ["a:1", "b:1"]})


def simple(jobs: Any, **options: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(jobs), **options)


def test_a_simple_resolver_answers_what_it_was_given() -> None:
    resolver = SimpleClusterResolver(
        WORKERS,
        master="c:1",
        task_type="worker",
        task_id=1,
        environment="lab",
        num_accelerators={"GPU": 8},
        rpc_layer="grpc",
    )
    assert resolver.cluster_spec() is WORKERS
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 1, "lab")
    assert resolver.num_accelerators() == resolver.num_accelerators("worker", 0) == {"GPU": 8}
    assert (resolver.master(), resolver.master("worker", 1)) == ("grpc://c:1", "grpc://b:1")
    assert resolver.master("worker", 0, rpc_layer="http") == "http://a:1"
    assert resolver.local_tasks() == (0, 1)


def test_a_simple_resolver_can_be_told_later_which_task_it_is() -> None:
    resolver = SimpleClusterResolver(WORKERS)
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert (resolver.master(), resolver.environment, resolver.num_accelerators()) == ("", "", {})
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "grpc"
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master("worker", 0) == "grpc://a:1"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (({"worker": ["a:1"]},), "is not a stratagem.cluster_resolver.ClusterSpec\n  fix: ClusterSpec"),
        ((WORKERS, 3), "master=3 is not a string"),
    ],
)
def test_a_simple_resolver_wants_a_cluster_spec_and_text(arguments: Any, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=text):
        SimpleClusterResolver(*arguments)


def test_lists_of_one_job_stand_one_after_the_other() -> None:
    union = UnionResolver(simple({"worker": ["a:1"], "ps": ["p:1"]}), simple({"worker": ["b:1"], "chief": ["c:1"]}))
    assert union.cluster_spec().as_dict() == {"worker": ["a:1", "b:1"], "ps": ["p:1"], "chief": ["c:1"]}


def test_numbered_tasks_keep_their_numbers() -> None:
    union = UnionResolver(simple({"worker": ["a:1", "b:1"]}), simple({"worker": {5: "f:1"}}))
    assert union.cluster_spec().as_dict() == {"worker": {0: "a:1", 1: "b:1", 5: "f:1"}}


def test_a_task_that_two_resolvers_have_is_refused() -> None:
    union = UnionResolver(simple({"worker": ["a:1", "b:1"]}), simple({"worker": {1: "c:1", 5: "f:1"}}))
    with pytest.raises(ArgumentError, match="two resolvers have the task worker:1\n  fix: number"):
        union.cluster_spec()


def test_everything_else_is_asked_of_the_first_resolver() -> None:
    class Shared(SimpleClusterResolver):
        def local_tasks(self) -> tuple[int, int]:
            return 1, 2

    first = Shared(WORKERS, "m:1", "worker", 1, environment="lab", num_accelerators={"GPU": 2}, rpc_layer="grpc")
    union = UnionResolver(first, simple({"ps": ["p:1"]}, task_type="ps", task_id=0))
    assert (union.task_type, union.task_id, union.environment, union.rpc_layer) == ("worker", 1, "lab", "grpc")
    assert union.num_accelerators("worker", 0) == {"GPU": 2}
    assert union.local_tasks() == (1, 2)
    assert (union.master(), union.master("ps", 0)) == ("grpc://m:1", "p:1")


def test_what_a_union_is_told_wins_also_task_0() -> None:
    union = UnionResolver(
        simple({"worker": ["a:1", "b:1"]}, task_type="chief", task_id=1), task_type="worker", task_id=0
    )
    assert (union.task_type, union.task_id) == ("worker", 0)
    union.task_type, union.task_id, union.rpc_layer = "ps", 4, "http"
    assert (union.task_type, union.task_id, union.master("worker", 0)) == ("ps", 4, "http://a:1")


def test_a_union_asks_a_resolver_of_a_users_own() -> None:
    class Mine(ClusterResolver):
        def cluster_spec(self) -> ClusterSpec:
            return WORKERS

        def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
            return "mine:1"

    mine = Mine()
    mine.task_type, mine.task_id = "worker", 1
    union = UnionResolver(mine)
    assert (union.task_type, union.task_id, union.rpc_layer, union.master()) == ("worker", 1, None, "mine:1")


def test_a_union_of_nothing_or_with_unknown_options_is_refused() -> None:
    with pytest.raises(ArgumentError, match="UnionResolver has no resolvers\n  fix: UnionResolver"):
        UnionResolver()
    with pytest.raises(ArgumentError, match="takes no port, zone\n  fix: it takes rpc_layer, task_type, task_id"):
        UnionResolver(simple({}), zone="z", port=1)
    with pytest.raises(ArgumentTypeError, match="'a:1' is not a ClusterResolver"):
        UnionResolver("a:1")  # type: ignore[arg-type]
