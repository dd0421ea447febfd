# SPDX-License-Identifier: Apache-2.0
"""`TorchrunClusterResolver` on the variables of torchrun, good and bad."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratagem.cluster_resolver import ClusterSpec, TorchrunClusterResolver
from stratagem.errors import ArgumentError

# torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=node-a:29400, on the second host.
AGENT = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "ROLE_RANK": "3",
    "ROLE_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "41737",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_the_first_task_has_an_address_and_the_others_a_place(started_with: Any) -> None:
    started_with(AGENT)
    resolver = TorchrunClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec({"worker": ["node-a:41738", "task-1", "task-2", "task-3"]})
    assert (resolver.task_type, resolver.task_id, resolver.local_tasks()) == ("worker", 3, (1, 2))
    assert (resolver.environment, resolver.num_accelerators(), resolver.rpc_layer) == ("", {}, None)
    assert (resolver.master("worker", 0), resolver.master()) == ("node-a:41738", "task-3")


@pytest.mark.parametrize(("store", "port"), [("True", 41738), ("False", 41737), ("", 41737)])
def test_a_port_where_torchruns_agent_listens_is_left_to_it(started_with: Any, store: str, port: int) -> None:
    started_with(AGENT | {"TORCHELASTIC_USE_AGENT_STORE": store})
    assert TorchrunClusterResolver().master("worker", 0) == f"node-a:{port}"


def test_a_port_that_is_given_wins(started_with: Any) -> None:
    started_with(AGENT | {"MASTER_ADDR": "fe80::1", "MASTER_PORT": ""})
    assert TorchrunClusterResolver(port=2222).master("worker", 0) == "[fe80::1]:2222"


def test_four_variables_are_enough(started_with: Any) -> None:
    started_with({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node-a", "MASTER_PORT": "29500"})
    resolver = TorchrunClusterResolver()
    assert resolver.local_tasks() == (0, 1)
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "chief", 7, "grpc"
    assert (resolver.task_type, resolver.task_id) == ("chief", 7)
    assert resolver.master("worker", 1) == "grpc://task-1"


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": ""}, "RANK is not set, which torchrun sets\n  fix: start the program with torchrun"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is not set"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is not set"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http' is not a whole number of 0 or more\n  fix: leave MASTER_PORT to"),
        ({"MASTER_PORT": "65535"}, "65536 is no port\n  fix: choose MASTER_PORT, or port, from 1 to 65534"),
        ({"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4\n  fix: leave both to torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 is not below WORLD_SIZE=0"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE is not set, which torchrun sets"),
    ],
    ids=str,
)
def test_variables_that_make_no_sense_are_refused(started_with: Any, variables: dict[str, str], text: str) -> None:
    started_with(AGENT | variables)
    with pytest.raises(ArgumentError, match=text):
        TorchrunClusterResolver()


_LISTEN = """
import socket
from stratagem.cluster_resolver import TorchrunClusterResolver

resolver = TorchrunClusterResolver()
if resolver.task_id == 0:
    port = int(resolver.master("worker", 0).rpartition(":")[2])
    with socket.socket() as server:
        server.bind(("", port))
        server.listen()
print(f"worker:{resolver.task_id} of {resolver.cluster_spec().num_tasks('worker')} {resolver.local_tasks()} ok")
"""


@pytest.mark.integration
@pytest.mark.timeout(120)
@pytest.mark.parametrize("keeps_its_store_to_itself", [False, True])
def test_rank_0_can_listen_where_torchrun_starts_it(
    started_with: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keeps_its_store_to_itself: bool
) -> None:
    started_with({})
    pytest.importorskip("torch")
    if keeps_its_store_to_itself:
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    script = tmp_path / "listen.py"
    script.write_text(_LISTEN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["worker:0 of 2 (0, 2) ok", "worker:1 of 2 (1, 2) ok"]
