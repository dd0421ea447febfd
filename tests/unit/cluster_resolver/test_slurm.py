# SPDX-License-Identifier: Apache-2.0
"""`SlurmClusterResolver` on the variables of srun, good and bad."""

from __future__ import annotations

import glob
from typing import Any

import pytest

from stratagem.cluster_resolver import ClusterSpec, SlurmClusterResolver
from stratagem.cluster_resolver._host_list import expand_counts, expand_hosts
from stratagem.errors import ArgumentError

# srun --nodes=3 --ntasks=5 --gpus-per-node=4, seen from its last task.
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "gpu[09-11]",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[09-11]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_DISTRIBUTION": "block",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "gpu10",
    "SLURM_GPUS_ON_NODE": "4",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}
BLOCK = ["gpu09:8888", "gpu09:8889", "gpu10:8888", "gpu10:8889", "gpu11:8888"]


def test_the_tasks_of_a_step_are_workers_each_with_a_port_of_its_own(started_with: Any) -> None:
    started_with(STEP)
    resolver = SlurmClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec({"worker": BLOCK})
    assert (resolver.task_type, resolver.task_id, resolver.get_task_info()) == ("worker", 3, ("worker", 3))
    assert resolver.local_tasks() == (1, 2)
    assert resolver.environment == ""
    assert (resolver.master(), resolver.master("worker", 0, "http")) == ("grpc://gpu10:8889", "http://gpu09:8888")
    assert repr(resolver) == f"SlurmClusterResolver(ClusterSpec({{'worker': {BLOCK}}}), worker:3)"


def test_what_it_is_told_wins(started_with: Any) -> None:
    started_with(STEP)
    resolver = SlurmClusterResolver(jobs={"worker": 4, "chief": 1}, port_base=2000, rpc_layer=None)
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["gpu09:2000"],
        "worker": ["gpu09:2001", "gpu10:2000", "gpu10:2001", "gpu11:2000"],
    }
    assert (resolver.task_type, resolver.task_id, resolver.master()) == ("worker", 2, "gpu10:2001")
    resolver.task_type, resolver.task_id = "chief", 0
    assert resolver.get_task_info() == ("chief", 0)


def test_nodes_stand_in_the_order_of_slurm_and_not_of_their_names(started_with: Any) -> None:
    step = {
        "SLURM_STEP_NODELIST": "n[9-10]",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "0",
        "SLURMD_NODENAME": "n9",
    }
    started_with(step)
    assert SlurmClusterResolver(gpus_per_node=0).cluster_spec().job_tasks("worker") == ["n9:8888", "n10:8888"]
    resolver = SlurmClusterResolver(gpus_per_node=0, tasks_per_node={"n10": 1, "n9": 1})
    assert resolver.cluster_spec().job_tasks("worker") == ["n9:8888", "n10:8888"]


def test_tasks_per_node_is_a_number_or_that_of_each_node(started_with: Any) -> None:
    started_with(STEP | {"SLURM_STEP_TASKS_PER_NODE": "1(x3)"})
    assert SlurmClusterResolver(jobs={"worker": 6}, tasks_per_node=2).cluster_spec().job_tasks("worker") == [
        *BLOCK,
        "gpu11:8889",
    ]
    resolver = SlurmClusterResolver(tasks_per_node={"gpu09": 2, "gpu10": 2, "gpu11": 1})
    assert resolver.cluster_spec().job_tasks("worker") == BLOCK


def test_tasks_given_out_in_turn_are_found(started_with: Any) -> None:
    started_with(STEP | {"SLURM_DISTRIBUTION": "cyclic:block", "SLURM_PROCID": "4"})
    resolver = SlurmClusterResolver()
    assert resolver.cluster_spec().job_tasks("worker") == [
        "gpu09:8888",
        "gpu10:8888",
        "gpu11:8888",
        "gpu09:8889",
        "gpu10:8889",
    ]
    assert resolver.local_tasks() == (1, 2)


@pytest.mark.parametrize(
    ("variables", "arguments", "per_task", "visible"),
    [
        ({}, {}, 2, "2,3"),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, {}, 2, "6,7"),  # a part of a node with eight
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, 2, "2,3"),
        ({}, {"gpus_per_task": 1}, 1, "1"),
        ({"SLURM_GPUS_PER_TASK": "a100:1"}, {}, 1, "1"),
        ({}, {"gpus_per_node": 2}, 1, "1"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {}, 2, None),  # Slurm shows each task its own
        ({}, {"auto_set_gpu": False}, 2, None),
        ({}, {"gpus_per_task": 0}, 0, None),
        ({"SLURM_GPUS_ON_NODE": ""}, {}, 2, "2,3"),
    ],
    ids=str,
)
def test_the_gpus_of_a_node_are_divided(
    started_with: Any, variables: dict[str, str], arguments: Any, per_task: int, visible: str | None
) -> None:
    started_with(STEP | variables)
    resolver = SlurmClusterResolver(**arguments)
    assert resolver.num_accelerators() == {"GPU": per_task}
    assert resolver.device_variables() == ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


def test_without_slurms_word_the_gpus_of_the_host_count(started_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started_with({name: value for name, value in STEP.items() if "GPUS" not in name and "CUDA" not in name})
    monkeypatch.setattr(glob, "glob", lambda pattern: [f"/dev/nvidia{index}" for index in range(6)])
    assert SlurmClusterResolver().device_variables() == {"CUDA_VISIBLE_DEVICES": "3,4,5"}
    monkeypatch.setattr(glob, "glob", lambda pattern: [])
    assert SlurmClusterResolver().num_accelerators() == {"GPU": 0}


@pytest.mark.parametrize(
    ("variables", "arguments", "text"),
    [
        ({"SLURM_PROCID": ""}, {}, "SLURM_PROCID is not set, which srun sets\n  fix: start the program with srun"),
        ({"SLURM_PROCID": "x"}, {}, "SLURM_PROCID='x' is not a whole number of 0 or more\n  fix: leave SLURM_PROCID"),
        ({"SLURM_PROCID": "5"}, {}, "SLURM_PROCID=5, but the nodes have 5 tasks.*\n  fix: tasks_per_node"),
        ({"SLURM_STEP_NODELIST": ""}, {}, "SLURM_STEP_NODELIST is not set, which srun sets"),
        ({"SLURM_STEP_TASKS_PER_NODE": ""}, {}, "SLURM_STEP_TASKS_PER_NODE is not set, which srun sets"),
        ({"SLURM_STEP_NUM_TASKS": ""}, {}, "SLURM_STEP_NUM_TASKS is not set, which srun sets"),
        ({"SLURM_STEP_TASKS_PER_NODE": "5"}, {}, "don't name each node once\n  fix: leave both to srun"),
        ({"SLURM_STEP_NODELIST": "gpu09,gpu10,gpu10"}, {}, "gpu09,gpu10,gpu10 and .* don't name each node once"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, {}, "the jobs have 4 tasks, but Slurm runs 5\n  fix: jobs={'worker': 5}, or"),
        ({}, {"jobs": {"ps": 1, "worker": 6}}, "the jobs have 7 tasks, but Slurm runs 5.*\n.*--ntasks=7"),
        (
            {"SLURM_DISTRIBUTION": "plane=4"},
            {},
            "SLURM_DISTRIBUTION=plane=4 is no way.*\n  fix: srun --dist",
        ),
        (
            {"SLURMD_NODENAME": "gpu11", "SLURM_LOCALID": "0"},
            {},
            "runs rank 3 as task 0 of gpu11, not as task 1 of",
        ),
        ({}, {"tasks_per_node": 0}, "not every node has a task.*\n  fix: tasks_per_node=1 or more"),
        ({}, {"tasks_per_node": {}}, "not every node has a task"),
        (
            {},
            {"gpus_per_task": 3},
            "2 tasks of a node with 3 GPUs each want more than its 4 GPUs\n  fix: gpus",
        ),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, {}, "CUDA_VISIBLE_DEVICES=0,1,2 lists too few GPUs for task 1 of this"),
    ],
    ids=str,
)
def test_variables_that_make_no_sense_are_refused(
    started_with: Any, variables: dict[str, str], arguments: Any, text: str
) -> None:
    started_with(STEP | variables)
    with pytest.raises(ArgumentError, match=text):
        SlurmClusterResolver(**arguments)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07-09],m5", ["n1", "n2", "n3", "n07", "n08", "n09", "m5"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("rack[1-2]node[1,3]-ib", ["rack1node1-ib", "rack1node3-ib", "rack2node1-ib", "rack2node3-ib"]),
        ("ip-10-0-0-1,ip-10-0-0-2", ["ip-10-0-0-1", "ip-10-0-0-2"]),
    ],
)
def test_host_lists_are_expanded_in_order(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "n[1-3", "n1-3]", "n[3-1]", "n[a-b]", "n[]", "n[1-2-3]", "n1,,n2", "n1,", "n 1"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a host list of Slurm\n  fix: leave it to srun"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["", "2(x)", "2x3", "a", "2,", "-1"])
def test_what_are_no_numbers_of_tasks_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not how Slurm writes numbers of tasks\n  fix: leave them to srun"):
        expand_counts(text)
