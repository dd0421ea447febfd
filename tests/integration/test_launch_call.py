# SPDX-License-Identifier: Apache-2.0
"""`stratagem.launch(fn)` and the pools of `stratagem.testing`: functions on replicas."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import stratagem
from stratagem import launch
from stratagem._core import env
from stratagem.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    ReplicaFailedError,
)
from stratagem.testing import ReplicaPool, run_replicas
from tests.processes import script, started

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def pool() -> Iterator[ReplicaPool]:
    with ReplicaPool(replicas=2, cpu_devices=2) as pool:
        yield pool


@pytest.fixture
def fragile_pool() -> Iterator[ReplicaPool]:
    """A pool of a test's own, to be broken."""
    with ReplicaPool(replicas=2, cpu_devices=2) as pool:
        yield pool


def rank() -> int:
    job = env.job()
    assert job is not None
    return job.rank


def test_launch_returns_the_results_in_rank_order() -> None:
    def after_a_while(seconds: float) -> int:
        time.sleep(seconds * (1 - rank()))
        return rank()

    assert stratagem.launch(after_a_while, replicas=2, args=(0.2,), cpu_devices=2) == [0, 1]


def test_launch_sends_closures_and_their_data() -> None:
    data = np.arange(3.0)
    results = launch.launch(lambda factor: data * factor, 2, (2,), 2)
    np.testing.assert_array_equal(results, [[0, 2, 4], [0, 2, 4]])


def test_launch_shows_the_traceback_of_a_replica_that_raises() -> None:
    def divide() -> float:
        return 1 / rank()

    with pytest.raises(ReplicaFailedError) as caught:
        launch.launch(divide, 2, cpu_devices=2)
    assert str(caught.value).startswith("replica 0/2 failed: ZeroDivisionError: division by zero\nTraceback (most")
    assert "in divide\n" in str(caught.value)


def test_launch_works_where_functions_are_defined_in_main_and_shows_their_output(tmp_path: Path) -> None:
    session = """
        import stratagem
        class Point:
            def __init__(self, x): self.x = x
        def double(point):
            print("doubling", point.x)
            return Point(2 * point.x)
        points = stratagem.launch(double, replicas=2, args=(Point(4),), cpu_devices=2)
        print([point.x for point in points], all(type(point) is Point for point in points))
    """
    path = tmp_path / script(tmp_path, session)
    with started([sys.executable, "-c", f"exec(open({str(path)!r}).read())"], tmp_path) as program:
        code, out, err = program.finish()
        program.leaves_nothing(within_seconds=2)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[8, 8] True", "[replica 0/2] doubling 4", "[replica 1/2] doubling 4"]


@pytest.mark.parametrize("interactive", ["import sys; sys.ps1 = '>>> '", "import IPython"], ids=["repl", "notebook"])
def test_an_interactive_python_is_told_to_call_launch(tmp_path: Path, interactive: str) -> None:
    script(tmp_path, "def get_ipython(): return object()", name="IPython.py")
    name = script(tmp_path, f"{interactive}\nfrom stratagem import launch\nlaunch.become_launcher(3)")
    with started([sys.executable, name], tmp_path) as program:
        code, _, err = program.finish()
    assert code == 1
    assert "LaunchError: 3 replicas need 3 processes, and a notebook or an interactive Python can't be" in err
    assert "stratagem.launch(fn, replicas=3)" in err


def test_a_replica_does_not_start_replicas_of_its_own_script(pool: ReplicaPool) -> None:
    with pytest.raises(ReplicaFailedError, match="needs 4 processes, but the job was started with 2"):
        pool.run(launch.become_launcher, 4)


def test_a_process_of_multiprocessing_is_no_script_to_run_again(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import multiprocessing
        from stratagem import launch
        if __name__ == "__main__":
            process = multiprocessing.get_context("fork").Process(target=launch.become_launcher, args=(2,))
            process.start()
            process.join()
        """,
    )
    with started([sys.executable, name], tmp_path) as program:
        _, _, err = program.finish()
    assert "LaunchError: 2 replicas need 2 processes, and a process of multiprocessing can't be" in err


def test_a_pool_keeps_its_processes_from_run_to_run(pool: ReplicaPool) -> None:
    assert pool.run(os.getpid) == pool.run(os.getpid)
    assert pool.alive


def test_a_pool_runs_functions_of_test_modules(pool: ReplicaPool) -> None:
    assert pool.run(rank) == [0, 1]


def test_a_pool_gives_its_processes_their_place_and_their_share_of_the_threads(pool: ReplicaPool) -> None:
    names = ["STRATAGEM_WORLD_SIZE", "STRATAGEM_CPU_DEVICES", "STRATAGEM_REPLICAS", "KERAS_BACKEND"]

    def variables() -> tuple[list[str], bool]:
        return [os.environ[name] for name in names], Path(os.environ["STRATAGEM_JOB_DIR"]).is_dir()

    assert pool.run(variables) == [(["2", "2", "2", "torch"], True)] * 2


def test_a_failure_on_all_replicas_alike_leaves_the_pool_alive(pool: ReplicaPool) -> None:
    before = pool.run(os.getpid)

    def fail() -> None:
        raise ValueError("the same")

    with pytest.raises(ReplicaFailedError, match="failed as well: ValueError: the same"):
        pool.run(fail)
    assert pool.run(os.getpid) == before


def test_sys_exit_in_a_function_is_a_failure(pool: ReplicaPool) -> None:
    with pytest.raises(ReplicaFailedError, match="SystemExit: 3"):
        pool.run(sys.exit, 3)


def test_a_failure_on_one_replica_ends_the_others_and_the_next_run_starts_new_ones(fragile_pool: ReplicaPool) -> None:
    before = fragile_pool.run(os.getpid)

    def fail_or_wait() -> None:
        if rank() == 1:
            raise ValueError("one only")
        time.sleep(60)

    with pytest.raises(ReplicaFailedError) as caught:
        fragile_pool.run(fail_or_wait)
    text = str(caught.value)
    assert text.startswith("replica 1/2 failed: ValueError: one only\nTraceback")
    assert "\nreplica 0/2 failed as well: was still at work when another process had failed" in text
    assert not fragile_pool.alive
    assert not any(_exists(pid) for pid in before)
    assert set(fragile_pool.run(os.getpid)).isdisjoint(before)


def test_a_time_out_ends_the_pool_and_says_where_the_replica_stood(fragile_pool: ReplicaPool) -> None:
    def sleep_on_replica_1() -> None:
        if rank() == 1:
            time.sleep(60)

    start = time.monotonic()
    with pytest.raises(ReplicaFailedError) as caught:
        fragile_pool.run(sleep_on_replica_1, timeout_seconds=1)
    assert time.monotonic() - start < 10
    assert "replica 1/2 failed: did not come back within 1 seconds\nit stood here:\n" in str(caught.value)
    assert "in sleep_on_replica_1" in str(caught.value)
    assert not fragile_pool.alive


def test_a_replica_that_dies_is_named_with_its_last_words(fragile_pool: ReplicaPool) -> None:
    def die(how: int) -> None:
        if rank() == 0:
            print("farewell", file=sys.stderr)
            os.kill(os.getpid(), how)

    with pytest.raises(ReplicaFailedError) as caught:
        fragile_pool.run(die, signal.SIGKILL)
    assert str(caught.value).startswith("replica 0/2 failed: was killed by SIGKILL (exit code 137")
    assert "farewell" in str(caught.value)


def test_a_pool_whose_processes_died_between_runs_starts_new_ones(fragile_pool: ReplicaPool) -> None:
    os.kill(fragile_pool.run(os.getpid)[1], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while fragile_pool.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fragile_pool.run(rank) == [0, 1]


def test_large_values_cross_both_ways(pool: ReplicaPool) -> None:
    data = np.arange(3_000_000.0)
    for result in pool.run(np.negative, data):
        np.testing.assert_array_equal(result, -data)


def test_a_result_that_cannot_be_pickled_is_an_error_that_says_so(pool: ReplicaPool) -> None:
    with pytest.raises(ReplicaFailedError, match="returned a lock that can't be pickled"):
        pool.run(threading.Lock)


def test_a_function_that_cannot_be_pickled_is_refused_and_the_pool_lives(pool: ReplicaPool) -> None:
    lock = threading.Lock()
    pool.run(rank)
    with pytest.raises(ArgumentTypeError, match="can't be sent to another process"):
        pool.run(lambda: lock)
    assert pool.alive


def test_a_time_limit_has_to_be_positive(pool: ReplicaPool) -> None:
    with pytest.raises(ArgumentError, match="timeout_seconds=0 is not positive"):
        pool.run(rank, timeout_seconds=0)


@pytest.mark.parametrize("method", ["close", "with"])
def test_closing_a_pool_leaves_no_process_and_no_folder(method: str) -> None:
    pool = ReplicaPool(replicas=2, cpu_devices=2, env={"TEST_POOL": "yes"})
    pids = pool.run(os.getpid)
    assert pool.run(os.getenv, "TEST_POOL") == ["yes", "yes"]
    (folder,) = set(pool.run(os.getenv, "STRATAGEM_JOB_DIR"))
    assert folder is not None
    if method == "close":
        pool.close()
        pool.close()
    else:
        with pool:
            pass
    assert not pool.alive
    assert not any(_exists(pid) for pid in pids)
    assert not Path(folder).exists()


def test_a_pool_that_is_not_closed_ends_with_its_program(tmp_path: Path) -> None:
    name = script(tmp_path, "from stratagem.testing import *; pool = ReplicaPool(replicas=2, cpu_devices=2)")
    with started([sys.executable, name], tmp_path) as program:
        assert program.finish() == (0, "", "")
        program.leaves_nothing(within_seconds=2)


def test_a_pool_of_a_thread_that_has_ended_stays_alive() -> None:
    pools: list[ReplicaPool] = []
    thread = threading.Thread(target=lambda: pools.append(ReplicaPool(replicas=2, cpu_devices=2)))
    thread.start()
    thread.join()
    with pools[0] as pool:
        assert pool.run(rank) == [0, 1]


def test_run_replicas_is_a_pool_for_one_function() -> None:
    assert run_replicas(rank, 2, timeout_seconds=30) == [0, 1]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ReplicaPool(replicas=0), ArgumentError, "0 replicas were asked for"),
        (lambda: launch.launch(rank, 2, cpu_devices=1), DeviceError, "2 replicas were asked for, but this host has 1"),
    ],
)
def test_numbers_that_do_not_work_are_refused(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_pool_of_jax_holds_all_replicas_in_one_process_or_as_many_in_several() -> None:
    def place() -> tuple[str, str, str]:
        return tuple(os.environ[name] for name in ("KERAS_BACKEND", "STRATAGEM_WORLD_SIZE", "STRATAGEM_CPU_DEVICES"))

    with ReplicaPool(replicas=4, cpu_devices=4, backend="jax") as pool:
        assert pool.run(place) == [("jax", "1", "4")]
        assert repr(pool) == "ReplicaPool(replicas=4, processes=1, alive=True)"
    with ReplicaPool(replicas=4, cpu_devices=4, backend="jax", processes=2) as pool:
        assert pool.run(place) == [("jax", "2", "4")] * 2
        with pytest.raises(ReplicaFailedError, match=r"^process \d/2 failed: ZeroDivisionError"):
            pool.run(lambda: 1 // 0)
