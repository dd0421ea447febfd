# SPDX-License-Identifier: Apache-2.0
"""`stratagem doctor` on one host, and on several: network namespaces with a router, and its firewall, between them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.network import PORT, Host, Network, three_hosts
from tests.processes import Program, started, stratagem, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Three hosts; gone afterwards, whatever happened."""
    with three_hosts() as hosts:
        yield hosts


@pytest.fixture
def light(tmp_path: Path) -> dict[str, str]:
    """Variables with which torch loads at once, for tests that end before anything is computed."""
    package = tmp_path / "light" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class version: cuda = hip = None\nclass cuda: is_available = lambda: False\n")
    return {"PYTHONPATH": str(package.parent)}


@dataclasses.dataclass(frozen=True)
class Found:
    """What one doctor found."""

    code: int
    checks: dict[str, dict[str, Any]]
    err: str

    def verdict(self, code: str) -> str:
        return self.checks[code]["verdict"]

    def text(self, code: str) -> str:
        return self.checks[code]["text"]

    def fix(self, code: str) -> str:
        return self.checks[code]["fix"]

    def failed(self) -> list[str]:
        return [code for code in self.checks if self.verdict(code) == "failed"]


def consult(
    hosts: Sequence[Host],
    folder: Path,
    *options: str,
    workers: str | None = None,
    own_options: Sequence[Sequence[str]] | None = None,
    variables: Sequence[Mapping[str, str]] | None = None,
) -> list[Found]:
    """Run a doctor on each of `hosts` and return what they found."""
    together = ("--workers", workers or ",".join(host.address for host in hosts))
    with contextlib.ExitStack() as opened:
        programs = []
        for number, host in enumerate(hosts):
            own = own_options[number] if own_options else ()
            given = together if "TF_CONFIG" not in (variables or [{}] * len(hosts))[number] else ()
            command = host.command(stratagem("doctor", "--json", *given, *options, *own), folder)
            home = folder / f"home-{number}"
            home.mkdir(exist_ok=True)
            programs.append(opened.enter_context(started(command, home, variables[number] if variables else None)))
        return [_found(program) for program in programs]


def _found(program: Program) -> Found:
    code, out, err = program.finish(seconds=100.0)
    assert out, err
    return Found(code, {check["code"]: check for check in json.loads(out)["checks"]}, err)


def test_a_sound_cluster_passes_every_check_and_sums_tensors(network: Network, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    for found in consult(network.hosts[:2], tmp_path, "--shared", str(folder)):
        assert {code: check["text"] for code, check in found.checks.items() if check["verdict"] != "ok"} == {}
        assert found.code == 0
        assert "the torch engine" in found.text("D21")
        assert "MB/s" in found.text("D21")
    assert list(folder.iterdir()) == []


@pytest.mark.thorough
def test_jax_sums_tensors_through_the_engine(network: Network, tmp_path: Path) -> None:
    for found in consult(network.hosts[:2], tmp_path, "--backend", "jax", variables=[{"KERAS_BACKEND": "jax"}] * 2):
        assert found.failed() == [], found.checks
        assert "the jax engine" in found.text("D21")


def test_a_firewall_in_one_direction_is_named_on_both_sides(
    network: Network, tmp_path: Path, light: dict[str, str]
) -> None:
    first, second, _ = network.hosts
    with network.firewall("blackhole", source=first, target=second):
        results = consult([first, second], tmp_path, "--timeout", "15", variables=[light] * 2)
    for found in results:
        assert (found.code, found.failed()) == (1, ["D17"])
        assert found.text("D17") == (
            f"worker:0 can't reach worker:1 ({second.address}), port {PORT}: "
            "timed out: a firewall drops the packets (the other way, worker:1 reaches worker:0)"
        )
        assert found.fix("D17") == f"on worker:1: sudo ufw allow proto tcp from {first.ip} to any port {PORT}"
        assert (found.verdict("D21"), found.text("D21")) == ("skipped", "D17 failed")


@pytest.mark.thorough
def test_pairs_that_can_not_reach_each_other_are_seen_by_all(
    network: Network, tmp_path: Path, light: dict[str, str]
) -> None:
    first, second, third = network.hosts
    with contextlib.ExitStack() as opened:
        for source, target in ((first, second), (second, third), (third, second)):
            opened.enter_context(network.firewall("blackhole", source=source, target=target))
        results = consult(network.hosts, tmp_path, "--timeout", "15", variables=[light] * 3)
    for found in results:
        assert found.failed() == ["D17"]
        into_second, into_third = found.text("D17").split("; ")
        assert into_second.startswith("worker:0, worker:2 can't reach worker:1")
        assert "timed out: a firewall drops the packets" in into_second
        assert into_second.endswith("(the other way, worker:1 reaches worker:0)")
        assert into_third.startswith("worker:1 can't reach worker:2")
        assert "the other way" not in into_third


@pytest.mark.thorough
def test_a_name_that_does_not_resolve_is_named(network: Network, tmp_path: Path, light: dict[str, str]) -> None:
    first, second, _ = network.hosts
    workers = f"{first.address},no-such-host.invalid:{PORT}"
    indices = [["--task-index", "0"], ["--task-index", "1"]]
    results = consult(
        [first, second], tmp_path, "--timeout", "2", workers=workers, own_options=indices, variables=[light] * 2
    )
    for found in results:
        assert found.code == 1
        assert found.verdict("D10") == "failed"
        assert "'no-such-host.invalid', in the address of worker:1, does not resolve" in found.text("D10")
    assert results[0].verdict("D11") == "ok"
    assert results[1].verdict("D11") == "failed"


def test_a_host_name_that_stands_for_the_loopback_is_named(
    network: Network, tmp_path: Path, light: dict[str, str]
) -> None:
    first, second, _ = network.hosts
    workers = f"host-1:{PORT},{second.address}"
    argv = stratagem("doctor", "--json", "--workers", workers, "--timeout", "1")
    # What installers of Debian and Ubuntu write: the host knows itself by an address that the others can't use.
    with started(first.command(argv, tmp_path, "127.0.1.1"), tmp_path, light) as program:
        found = _found(program)
    assert (found.verdict("D11"), found.verdict("D13")) == ("ok", "warning")
    assert "own name host-1 stands for 127.0.1.1" in found.text("D13")
    assert found.fix("D13") == f"export GLOO_SOCKET_IFNAME=eth0; or in /etc/hosts, let host-1 stand for {first.ip}"


def test_a_port_that_is_taken_is_named_with_its_process(
    network: Network, tmp_path: Path, light: dict[str, str]
) -> None:
    first, second, _ = network.hosts
    server = f"import socket, time; s = socket.create_server(('', {PORT})); print('up', flush=True); time.sleep(90)"
    folder = tmp_path / "server"
    folder.mkdir()
    with started(second.command(["python3", "-c", server], folder), folder) as taker:
        assert taker.process.stdout is not None
        assert taker.process.stdout.readline() == "up\n"
        results = consult([first, second], tmp_path, "--timeout", "8", variables=[light] * 2)
    for found in results:
        assert found.failed() == ["D12"]
        who = f"worker:1 can't listen at its port {PORT}: process {taker.process.pid} ("
        assert found.text("D12").startswith(who)
        assert found.text("D12").endswith(") has it")


def test_several_faults_at_once_are_all_named_with_their_worker(
    network: Network, tmp_path: Path, light: dict[str, str]
) -> None:
    first, second, _ = network.hosts
    metadata = tmp_path / "packages" / "numpy-1.99.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.99.0\n")
    variables = [light, {"PYTHONPATH": f"{tmp_path / 'packages'}:{light['PYTHONPATH']}"}]
    folders = [tmp_path / "ours", tmp_path / "theirs"]
    for folder in folders:
        folder.mkdir()
    own = [["--shared", str(folder)] for folder in folders]
    with network.firewall("prohibit", source=first, target=second):
        results = consult([first, second], tmp_path, variables=variables, own_options=own)
    for number, found in enumerate(results):
        assert (found.code, found.failed()) == (1, ["D17", "D18", "D20"])
        assert f"worker:0 can't reach worker:1 ({second.address}), port {PORT}: no route to the host" in (
            found.text("D17")
        )
        assert found.text("D18").startswith("numpy is ")
        assert "1.99.0 on worker:1" in found.text("D18")
        assert f"worker:0 does not see in {folders[number]} what worker:1 wrote" in found.text("D20")
        assert f"worker:1 does not see in {folders[number]} what worker:0 wrote" in found.text("D20")


@pytest.mark.thorough
def test_two_workers_with_one_index_are_named_with_their_hosts(
    network: Network, tmp_path: Path, light: dict[str, str]
) -> None:
    first, second, _ = network.hosts
    config = {"cluster": {"worker": [first.address, second.address]}, "task": {"type": "worker", "index": 0}}
    variables = {**light, "TF_CONFIG": json.dumps(config)}
    results = consult([first, second], tmp_path, "--timeout", "6", variables=[variables] * 2)
    for found in results:
        assert found.code == 1
        assert found.verdict("D15") == "failed"
        assert "worker:0 is what 2 workers say to be: " in found.text("D15")
        assert "host host-1" in found.text("D15")
        assert "host host-2" in found.text("D15")
    assert results[0].verdict("D11") == "ok"
    assert results[1].verdict("D11") == "failed"
    assert results[1].fix("D11") == 'give it the task of its host: "index": 1'


@pytest.mark.thorough
def test_different_clusters_are_told_apart(network: Network, tmp_path: Path, light: dict[str, str]) -> None:
    first, second, third = network.hosts
    clusters = [first.address, second.address], [first.address, second.address, third.address]
    configs = [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index, addresses in enumerate(clusters)
    ]
    variables = [{**light, "TF_CONFIG": json.dumps(config)} for config in configs]
    results = consult([first, second], tmp_path, "--timeout", "2", variables=variables)
    for found in results:
        assert found.verdict("D16") == "failed"
    assert results[0].text("D16") == (
        f"worker:1 was given another cluster than worker:0: worker:2 is {third.address} there, missing here"
    )


def test_absent_workers_are_named_with_why_they_do_not_answer(
    network: Network, tmp_path: Path, light: dict[str, str]
) -> None:
    first, second, third = network.hosts
    workers = f"{first.address},{second.address},10.201.9.2:{PORT},{third.address}"
    with network.firewall("blackhole", source=first, target=third):
        (found,) = consult([first], tmp_path, "--timeout", "8", workers=workers, variables=[light])
    assert (found.code, found.failed()) == (1, ["D14"])
    second_text, no_network, third_text = _absent(found)
    assert second_text == (
        f"worker:1 ({second.address}) did not come within 8 seconds; "
        "worker:0 calls it: refused: nothing listens there, or a firewall rejects"
    )
    # Whether the neighbours' silence is told as an error before the call ends is for the system to say.
    silent = "timed out: a firewall drops the packets, or the host is down"
    assert no_network.endswith(("worker:0 calls it: no route to the host, or a firewall rejects", silent))
    assert third_text.endswith(silent)
    assert f"waiting for worker:1 ({second.address}), " in found.err
    assert " to answer, 7 seconds more at most" in found.err


def _absent(found: Found) -> list[str]:
    """The sentences of D14, one a worker."""
    parts = found.text("D14").split("; ")
    return ["; ".join(parts[at : at + 2]) for at in range(0, len(parts), 2)]


def test_ctrl_c_ends_a_waiting_doctor_at_once(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    command = stratagem("doctor", "--shared", str(shared), *_two_local_workers())
    for sent, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with started(command, tmp_path) as program:
            wait_until(lambda: list(shared.iterdir()), "the doctor to be at work")
            time.sleep(0.5)
            program.process.send_signal(sent)
            ended, _, err = program.finish(seconds=5.0)
            assert ended == code, err
            program.leaves_nothing(within_seconds=3.0)
        assert list(shared.iterdir()) == []


def test_without_a_cluster_this_host_alone_is_checked(tmp_path: Path) -> None:
    with started(stratagem("doctor"), tmp_path, {"COLUMNS": "120"}) as program:
        code, out, err = program.finish()
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("D")][-1] == ["D10-D21", "skipped"]
    assert "stratagem doctor: nothing failed" in out


def test_a_tf_config_that_can_not_be_read_fails_its_check(tmp_path: Path, light: dict[str, str]) -> None:
    with started(stratagem("doctor", "--json"), tmp_path, {**light, "TF_CONFIG": "{cluster"}) as program:
        found = _found(program)
    assert (found.code, found.failed()) == (1, ["D06"])
    assert "TF_CONFIG is not JSON" in found.text("D06")


def test_devices_lists_those_of_the_backend_that_is_asked_for(tmp_path: Path) -> None:
    with started(stratagem("devices", "--backend", "jax"), tmp_path, {"JAX_PLATFORMS": "cpu"}) as program:
        code, out, err = program.finish(seconds=60.0)
    assert code == 0, err
    assert "Keras backend: jax" in out


def _two_local_workers() -> list[str]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        addresses = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
    return ["--workers", addresses, "--task-index", "0"]
