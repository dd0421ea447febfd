# SPDX-License-Identifier: Apache-2.0
"""How the tasks of a cluster meet at the first one's address, before jax is told of them."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from stratagem._core.cluster import Cluster
from stratagem.engines.jax._meeting import meet_at_address
from stratagem.errors import ArgumentError, CollectiveTimeoutError, JobMismatchError

LIMIT_SECONDS = 20.0


def cluster(port: int, rank: int, tasks: int = 3) -> Cluster:
    others = tuple((f"worker:{index}", "127.0.0.1:1") for index in range(tasks - 1))
    return Cluster(tasks=(("chief:0", f"127.0.0.1:{port}"), *others), rank=rank)


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def meet(port: int, *ranks: int, seconds: float = LIMIT_SECONDS) -> list[Future[None]]:
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


def _first_error(futures: list[Future[None]]) -> BaseException | None:
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
