# SPDX-License-Identifier: Apache-2.0
"""`ClusterSpec`: what it is made of, what it answers, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem.cluster_resolver import ClusterSpec
from stratagem.errors import ArgumentError, ArgumentTypeError

SPARSE = {"worker": {3: "d:1", 1: "b:1"}, "ps": ["p:1"]}


def test_tasks_may_be_numbered_with_gaps() -> None:
    spec = ClusterSpec(SPARSE)
    assert spec.jobs == ["worker", "ps"]
    assert (spec.num_tasks("worker"), spec.task_indices("worker")) == (2, [1, 3])
    assert spec.job_tasks("worker") == [None, "b:1", None, "d:1"]
    assert spec.task_address("worker", 3) == "d:1"
    assert spec.as_dict() == {"worker": {1: "b:1", 3: "d:1"}, "ps": ["p:1"]}


def test_numbers_without_gaps_are_a_list() -> None:
    spec = ClusterSpec({"worker": {1: "b:1", 0: "a:1"}})
    assert spec.as_dict() == {"worker": ["a:1", "b:1"]}
    assert spec == ClusterSpec({"worker": ("a:1", "b:1")})


def test_numbers_may_be_text_as_in_json() -> None:
    assert ClusterSpec({"worker": {"1": "b:1"}}).task_address("worker", 1) == "b:1"  # type: ignore[dict-item]


def test_a_spec_is_made_of_another_and_does_not_share_its_tasks() -> None:
    jobs = {"worker": ["a:1"]}
    spec = ClusterSpec(jobs)
    copy = ClusterSpec(spec)
    jobs["worker"].append("b:1")
    spec.as_dict()["worker"].clear()
    assert copy == spec == ClusterSpec({"worker": ["a:1"]})
    assert hash(copy) == hash(spec)
    assert copy != ClusterSpec({"worker": ["b:1"]})


def test_a_spec_without_jobs_is_false() -> None:
    assert not ClusterSpec({})
    assert ClusterSpec({"worker": []})
    assert ClusterSpec({"worker": []}).job_tasks("worker") == []


def test_its_text_can_be_pasted() -> None:
    spec = ClusterSpec(SPARSE)
    assert eval(repr(spec)) == spec


@pytest.mark.parametrize(
    ("cluster", "error", "text"),
    [
        (["a:1"], ArgumentTypeError, r"cluster=\['a:1'\] is not a dict of jobs\n  fix: ClusterSpec\("),
        ({1: ["a:1"]}, ArgumentTypeError, "the name of the job 1 is not a string"),
        ({"worker": "a:1"}, ArgumentTypeError, "the tasks of the job 'worker' are no list of addresses: 'a:1'"),
        ({"worker": ["a:1", 2]}, ArgumentTypeError, "the address of worker:1 is not a string: 2"),
        ({"worker": {"x": "a:1"}}, ArgumentError, "the job 'worker' has a task 'x', which is no number of 0 or more"),
        ({"worker": {-1: "a:1"}}, ArgumentError, "has a task -1, which is no number"),
    ],
    ids=str,
)
def test_what_is_no_cluster_is_refused_with_an_example(cluster: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ClusterSpec(cluster)


@pytest.mark.parametrize("ask", [ClusterSpec.num_tasks, ClusterSpec.task_indices, ClusterSpec.job_tasks])
def test_an_absent_job_is_named_with_those_there_are(ask: Any) -> None:
    with pytest.raises(ArgumentError, match="the cluster has no job 'chief'\n  fix: its jobs are: worker, ps"):
        ask(ClusterSpec(SPARSE), "chief")


def test_an_absent_task_is_named_with_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="the job 'worker' has no task 0\n  fix: its tasks are: 1, 3"):
        ClusterSpec(SPARSE).task_address("worker", 0)
