# SPDX-License-Identifier: Apache-2.0
"""How the tasks of a cluster meet at the first one's address, before the framework is told of them."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from stratagem._core.cluster import Cluster
from stratagem.engines._meeting import meet_at_address
from stratagem.engines._network import interface_of
from stratagem.errors import ArgumentError, CollectiveTimeoutError, DeviceError, JobMismatchError, LaunchError

LIMIT_SECONDS = 20.0


def cluster(port: int, rank: int, tasks: int = 3) -> Cluster:
    others = tuple((f"worker:{index}", "127.0.0.1:1") for index in range(tasks - 1))
    return Cluster(tasks=(("chief:0", f"127.0.0.1:{port}"), *others), rank=rank)


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def meet(port: int, *ranks: int, seconds: float = LIMIT_SECONDS) -> list[Future[str]]:
    """What becomes of tasks with these ranks, each in a thread of its own."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [pool.submit(meet_at_address, cluster(port, rank), seconds) for rank in ranks]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_go_on_once_all_are_there(port: int, order: tuple[int, ...]) -> None:
    assert [future.exception() for future in meet(port, *order)] == [None] * 3


def test_one_of_two_that_say_they_are_the_same_task_is_refused(port: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        chief = pool.submit(meet_at_address, cluster(port, 0), LIMIT_SECONDS)
        twins = [pool.submit(meet_at_address, cluster(port, 1), LIMIT_SECONDS) for _ in range(2)]
        refused = _first_error(twins)
        meet_at_address(cluster(port, 2), LIMIT_SECONDS)
    assert isinstance(refused, JobMismatchError)
    assert refused.problem == "/worker:0 is there already"
    assert chief.exception() is None
    assert sorted(type(twin.exception()).__name__ for twin in twins) == ["JobMismatchError", "NoneType"]


def _first_error(futures: list[Future[str]]) -> BaseException | None:
    while True:
        for future in futures:
            if future.done():
                return future.exception()


def test_those_that_came_learn_whom_the_first_one_waited_for(port: int) -> None:
    chief, worker = meet(port, 0, 1, seconds=1.0)
    assert isinstance(chief.exception(), CollectiveTimeoutError)
    assert "/chief:0 waited 1 seconds for /worker:1 (127.0.0.1:1) to connect to" in str(chief.exception())
    said = str(worker.exception())
    assert "waited 1 seconds for /worker:1" in said or "waited 1 seconds for /chief:0 at 127.0.0.1" in said


def test_tasks_that_count_the_jobs_processes_differently_are_told(port: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        chief = pool.submit(meet_at_address, cluster(port, 0, tasks=2), LIMIT_SECONDS)
        other = pool.submit(meet_at_address, cluster(port, 1, tasks=4), LIMIT_SECONDS)
    for error in (chief.exception(), other.exception()):
        assert isinstance(error, JobMismatchError)
        assert error.problem == "one process counts 4 of them in the job, /chief:0 2"


def test_a_taken_port_is_named(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(LaunchError) as caught:
        meet_at_address(cluster(port, 0), 1.0)
    assert caught.value.problem == f"/chief:0 can't listen at 127.0.0.1:{port}: Address already in use"


def test_a_port_that_the_run_before_lets_go_is_waited_for_and_its_answers_are_no_answers(port: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        with socket.create_server(("127.0.0.1", port)) as before:
            futures = [pool.submit(meet_at_address, cluster(port, rank, tasks=2), LIMIT_SECONDS) for rank in (0, 1)]
            caller = before.accept()[0]
            caller.sendall(b"\x00\x00\x12\x04\x00 as gRPC greets\xff\n")
            caller.close()
            assert not any(future.done() for future in futures)
    assert [future.exception() for future in futures] == [None] * 2


def test_each_learns_by_which_address_the_others_reach_it(port: int) -> None:
    assert [future.result() for future in meet(port, 0, 1, 2)] == ["127.0.0.1"] * 3
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""


def test_an_absent_first_task_is_named_with_what_stood_in_the_way(port: int) -> None:
    (worker,) = meet(port, 1, seconds=0.5)
    assert isinstance(worker.exception(), CollectiveTimeoutError)
    assert f"waited 0.5 seconds for /chief:0 at 127.0.0.1:{port}: nobody listens there" in str(worker.exception())


def test_strangers_are_passed_over(port: int) -> None:
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(meet_at_address, cluster(port, 0), LIMIT_SECONDS)]
        for text in (b"GET / HTTP/1.1\r\n", b"7\n"):
            _say(port, text)
        futures += [pool.submit(meet_at_address, cluster(port, rank), LIMIT_SECONDS) for rank in (1, 2)]
    assert [future.exception() for future in futures] == [None] * 3


def _say(port: int, text: bytes) -> None:
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as chief:
                chief.sendall(text)
                return
        except ConnectionRefusedError:
            continue


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the address 'host' of /chief:0 does not name a port"):
        Cluster(tasks=(("chief:0", "host"), ("worker:0", "other:1")), rank=0)


def test_a_task_of_several_processes_counts_each_of_them() -> None:
    two = Cluster(tasks=(("chief:0", "a:1"), ("worker:0", "b:2")), rank=1).of_processes(2, 1)
    assert (two.world_size, two.rank, two.process, two.chief) == (4, 3, 1, ("a", 1))
    assert two.name(3) == "/worker:0 process 1"


@pytest.mark.parametrize(
    ("present", "tasks", "expected"),
    [
        (("GPU:0", "GPU:1", "GPU:2", "GPU:3"), 2, ("GPU:2", "GPU:3")),
        (("GPU:0", "GPU:1"), 2, ("GPU:1",)),
        (("CPU:0",), 2, ("CPU:0",)),
        (("CPU:0", "CPU:1", "CPU:2", "CPU:3"), 2, ("CPU:2", "CPU:3")),
    ],
)
def test_tasks_of_one_host_divide_its_devices(present: tuple[str, ...], tasks: int, expected: tuple[str, ...]) -> None:
    both = (("worker:0", "a:1"), ("worker:1", "a:2"))
    assert Cluster(tasks=both, rank=1, local_task=1, num_local_tasks=tasks).devices_of_task(present) == expected


@pytest.mark.parametrize(
    ("addresses", "num_local_tasks", "expected"),
    [
        (("a:1", "a:2"), 1, True),
        (("a:1", "b:2"), 1, False),
        (("a:1", "task-1"), 2, True),  # by torchrun, which tells the address of the first task alone
        (("a:1", "task-1", "task-2"), 2, False),
    ],
)
def test_tasks_are_on_one_host_by_their_addresses_or_their_launchers_word(
    addresses: tuple[str, ...], num_local_tasks: int, expected: bool
) -> None:
    tasks = tuple((f"worker:{index}", address) for index, address in enumerate(addresses))
    cluster = Cluster(tasks=tasks, rank=0, num_local_tasks=num_local_tasks)
    assert cluster.on_one_host is expected
    assert cluster.of_processes(2, 1).on_one_host is expected


def test_more_tasks_than_gpus_on_a_host_are_refused() -> None:
    one = Cluster(tasks=(("worker:0", "a:1"), ("worker:1", "a:2")), rank=1, local_task=1, num_local_tasks=2)
    with pytest.raises(DeviceError, match="2 tasks share this host, which has 1 devices: GPU:0"):
        one.devices_of_task(("GPU:0",))
