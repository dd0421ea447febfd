# SPDX-License-Identifier: Apache-2.0
"""`detect`: which launcher is found, in which order, and the line of the log that says so."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from stratagem.cluster_resolver import (
    KubernetesClusterResolver,
    MPIClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
)
from stratagem.cluster_resolver._detect import detect
from stratagem.errors import ArgumentError

TF_CONFIG = {
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 1}})
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n2",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "PMIX_NAMESPACE": "prterun-node-a-991@1",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-worker-1"}
JAX_JOB = POD | {
    "COORDINATOR_ADDRESS": "train-worker-0",
    "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "2",
    "PROCESS_ID": "1",
}
PYTORCH_JOB = POD | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}
JOB_SET = POD | {"JOBSET_NAME": "train", "REPLICATED_JOB_NAME": "workers", "JOB_COMPLETION_INDEX": "1"}


@pytest.mark.parametrize(
    ("variables", "kind", "line"),
    [
        (TF_CONFIG, TFConfigClusterResolver, "3 tasks from TF_CONFIG, this one is worker:1"),
        (TORCHRUN, TorchrunClusterResolver, "4 tasks from torchrun (TORCHELASTIC_RUN_ID=none), this one is worker:1"),
        (SLURM, SlurmClusterResolver, "4 tasks from Slurm (SLURM_JOB_ID=77), this one is worker:2"),
        (MPI, MPIClusterResolver, "8 tasks from MPI (PMIX_NAMESPACE=prterun-node-a-991@1), this one is worker:5"),
        (JAX_JOB, KubernetesClusterResolver, "2 tasks from Kubernetes (HOSTNAME=train-worker-1), this one is worker:1"),
        (PYTORCH_JOB, KubernetesClusterResolver, "2 tasks from Kubernetes (HOSTNAME=train-worker-1), this one is wor"),
        (JOB_SET | {"NUM_PROCESSES": "2"}, KubernetesClusterResolver, "2 tasks from Kubernetes"),
        (TF_CONFIG | TORCHRUN | SLURM | MPI, TFConfigClusterResolver, "3 tasks from TF_CONFIG"),
        (TORCHRUN | SLURM | MPI | JAX_JOB, TorchrunClusterResolver, "4 tasks from torchrun"),
        (MPI | JAX_JOB, MPIClusterResolver, "8 tasks from MPI"),
        ({"TF_CONFIG": "{}"} | SLURM, TFConfigClusterResolver, "no tasks from TF_CONFIG"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, TFConfigClusterResolver, "1 task from TF_CONFIG"),
    ],
)
def test_a_launcher_is_found_and_named(
    started_with: Any, caplog: pytest.LogCaptureFixture, variables: dict[str, str], kind: type, line: str
) -> None:
    started_with(variables)
    with caplog.at_level(logging.INFO, logger="stratagem"):
        assert type(detect()) is kind
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"cluster: {line}")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "4", "RANK": "1"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # sbatch runs its script once, without srun
        MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {name: value for name, value in JAX_JOB.items() if name != "KUBERNETES_SERVICE_HOST"},
        JAX_JOB | {"NUM_PROCESSES": "1", "PROCESS_ID": "0"},
        POD | {"PROCESS_ID": "12"},
        JOB_SET,  # its pods may work each for itself
        {"TPU_WORKER_HOSTNAMES": "t-0,t-1", "TPU_WORKER_ID": "1"},
    ],
    ids=str,
)
def test_who_is_alone_is_left_alone_without_a_word(
    started_with: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variables: dict[str, str]
) -> None:
    started_with(variables)
    with caplog.at_level(logging.INFO, logger="stratagem"):
        assert detect() is None
    assert not caplog.messages


def test_mpirun_in_a_slurm_job_wins_over_the_numbers_of_its_helpers(started_with: Any) -> None:
    # mpirun starts one helper on each node with srun, and the program inherits the helper's variables.
    helpers = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"}
    started_with(SLURM | helpers | MPI)
    assert isinstance(detect(), MPIClusterResolver)


def test_srun_that_sets_the_variables_of_mpi_too_is_slurm(started_with: Any) -> None:
    started_with(SLURM | {"PMI_RANK": "2", "PMI_SIZE": "4"})  # srun --mpi=pmi2
    assert isinstance(detect(), SlurmClusterResolver)


def test_two_steps_of_slurm_on_one_node_have_ports_of_their_own(started_with: Any) -> None:
    def chief(**variables: str) -> str:
        started_with(SLURM | variables)
        resolver = detect()
        assert resolver is not None
        return resolver.master("worker", 0)

    assert chief() == chief(SLURM_PROCID="3", SLURM_LOCALID="1")
    assert len({chief(), chief(SLURM_STEP_ID="1"), chief(SLURM_JOB_ID="78")}) == 3


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        (TORCHRUN | {"WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not a whole number"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS='x' is not a whole number"),
        (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "6"}, "MPI does not tell on which host rank 0 is\n  fix: MPIClusterRes"),
        (JAX_JOB | {"NUM_PROCESSES": ""}, "NUM_PROCESSES is not set, which JAXJob sets"),
    ],
    ids=str,
)
def test_a_launcher_whose_variables_make_no_sense_is_not_passed_over(
    started_with: Any, variables: dict[str, str], text: str
) -> None:
    started_with(variables)
    with pytest.raises(ArgumentError, match=text):
        detect()
