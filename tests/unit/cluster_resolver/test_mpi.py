# SPDX-License-Identifier: Apache-2.0
"""`MPIClusterResolver` on the variables of mpirun and mpiexec, good and bad."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem.cluster_resolver import MPIClusterResolver
from stratagem.errors import ArgumentError

# mpirun -n 4 --host node-a:2,node-b:2 of Open MPI 4, on the second host.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_UNIVERSE_SIZE": "4",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "PMIX_NAMESPACE": "1531576321",
    "PMIX_RANK": "2",
}
# Open MPI 5 on one host.
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node-a-30516@1",
    "PMIX_RANK": "1",
    "PMIX_SERVER_URI4": "prterun-node-a-30516@0.0;tcp4://127.0.0.1:56195",
}
# mpiexec -n 4 -ppn 2 of MPICH or Intel MPI.
HYDRA = {
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
    "PMI_FD": "9",
    "PMI_HOSTNAME": "node-b",
}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}


@pytest.mark.parametrize(
    ("variables", "rank", "num_tasks", "local"),
    [(OPEN_MPI, 2, 4, (0, 2)), (OPEN_MPI_5, 1, 2, (1, 2)), (HYDRA, 3, 4, (1, 2)), (MVAPICH, 1, 2, (1, 2))],
    ids=["Open MPI 4", "Open MPI 5", "MPICH", "MVAPICH"],
)
def test_each_family_of_launchers_is_understood(
    started_with: Any, variables: dict[str, str], rank: int, num_tasks: int, local: tuple[int, int]
) -> None:
    started_with(variables)
    resolver = MPIClusterResolver(coordinator="node-a:2222")
    others = [f"task-{index}" for index in range(1, num_tasks)]
    assert resolver.cluster_spec().as_dict() == {"worker": ["node-a:2222", *others]}
    assert (resolver.task_type, resolver.task_id, resolver.local_tasks()) == ("worker", rank, local)
    assert resolver.master() == f"task-{rank}"
    resolver.rpc_layer = "grpc"
    assert (resolver.rpc_layer, resolver.master("worker", 0)) == ("grpc", "grpc://node-a:2222")


def test_open_mpi_4_tells_where_mpirun_is(started_with: Any) -> None:
    started_with(OPEN_MPI)
    host, _, port = MPIClusterResolver().master("worker", 0).rpartition(":")
    assert host == "10.96.0.1"
    assert 20_000 <= int(port) < 30_000
    started_with(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "3"})
    assert MPIClusterResolver().master("worker", 0) == f"{host}:{port}", "all tasks get the same port"
    started_with(OPEN_MPI | {"PMIX_NAMESPACE": "1531576322"})
    assert MPIClusterResolver().master("worker", 0) != f"{host}:{port}", "another job gets another"


def test_an_address_of_ipv6_keeps_its_brackets(started_with: Any) -> None:
    started_with(OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "131.0;tcp6://[fe80::b9b,2620:10d::2]:43370"})
    assert MPIClusterResolver().master("worker", 0).startswith("[fe80::b9b]:2")


def test_rank_0_elsewhere_than_mpirun_says_so_before_others_look_for_it(started_with: Any) -> None:
    # An address of TEST-NET-1, which no host has.
    started_with(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_orte_hnp_uri": "131.0;tcp://192.0.2.7:34911"})
    with pytest.raises(
        ArgumentError, match=r"rank 0 does not run on the host of mpirun \(192.0.2.7.*\n  fix: MPIClust"
    ):
        MPIClusterResolver()
    started_with(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_orte_hnp_uri": "131.0;tcp://127.0.0.1:34911"})
    assert MPIClusterResolver().master("worker", 0).startswith("127.0.0.1:2")


def test_master_addr_and_port_are_taken_where_they_were_exported(started_with: Any) -> None:
    started_with(HYDRA | {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500"})
    assert MPIClusterResolver().master("worker", 0) == "node-a:29500"


def test_tasks_of_one_host_meet_on_it(started_with: Any) -> None:
    started_with(HYDRA | {"MPI_LOCALNRANKS": "4", "MASTER_PORT": "29500"})
    assert MPIClusterResolver().master("worker", 0) == "127.0.0.1:29500"
    started_with(OPEN_MPI_5)
    assert MPIClusterResolver().master("worker", 0).startswith("127.0.0.1:2")
    started_with({"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert MPIClusterResolver().cluster_spec().num_tasks("worker") == 1


@pytest.mark.parametrize(
    ("variables", "coordinator", "text"),
    [
        (HYDRA, None, "MPI does not tell on which host rank 0 is\n  fix: MPIClusterResolver.coordinator="),
        (
            HYDRA,
            "node-a",
            "coordinator='node-a' does not name a host and a port\n  fix: coordinator=\"host-name:2222\"",
        ),
        (HYDRA, ":2222", "coordinator=':2222' does not name a host and a port"),
        (HYDRA, "node-a:99999", "coordinator='node-a:99999' does not name a host and a port"),
        (HYDRA | {"MASTER_ADDR": "a", "MASTER_PORT": "x"}, None, "MASTER_PORT='x' is not a whole number"),
        (
            HYDRA | {"PMI_SIZE": ""},
            None,
            "PMI_SIZE is not set, which mpirun sets\n  fix: start the program with mpirun",
        ),
        (HYDRA | {"PMI_RANK": "4"}, "a:1", "PMI_RANK=4 is not below PMI_SIZE=4\n  fix: leave both to mpirun"),
        (HYDRA | {"MPI_LOCALRANKID": "2"}, "a:1", "MPI_LOCALRANKID=2 is not below MPI_LOCALNRANKS=2"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "two"}, "a:1", "OMPI_COMM_WORLD_RANK='two' is not a whole number"),
        (
            {},
            "a:1",
            "not started by MPI: none of OMPI_COMM_WORLD_RANK, .* is set\n  fix: start the program with: mpirun",
        ),
        ({"PMIX_RANK": "1"}, "a:1", "PMIX_RANK alone does not say how many tasks there are\n  fix: start"),
    ],
)
def test_variables_that_make_no_sense_are_refused(
    started_with: Any, variables: dict[str, str], coordinator: str | None, text: str
) -> None:
    started_with(variables)
    with pytest.raises(ArgumentError, match=text):
        MPIClusterResolver(coordinator)
