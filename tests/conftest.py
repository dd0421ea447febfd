# SPDX-License-Identifier: Apache-2.0
"""What every test gets: a torch backend, pools of replicas to share, and a check that it leaves no trace."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Before anything imports keras: the suite runs on torch, and TensorFlow (read by tf.data tests) stays quiet.
os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # torch sets it when it first looks for a GPU

from stratagem.testing import ReplicaPool

if TYPE_CHECKING:
    from tests.two_workers import Answers

GRACE_SECONDS = 3.0
PROC = Path("/proc")

# Written by others when they are first imported, once a process, and harmless.
_SET_BY_LIBRARIES = frozenset(
    {
        "KMP_DUPLICATE_LIB_OK",  # torch
        "KMP_INIT_AT_FORK",  # torch
        "PYTEST_CURRENT_TEST",  # pytest
        "TF2_BEHAVIOR",  # tensorflow
        "TORCHINDUCTOR_CACHE_DIR",  # torch
        "TPU_SKIP_MDS_QUERY",  # jax, where there is no TPU
    }
)


_shared_processes: set[int] = set()


class _SharedPool(ReplicaPool):
    """A pool whose processes no test is blamed for, also when it has to start new ones."""

    def _start(self) -> None:
        before = _processes()
        super()._start()
        _shared_processes.update(_processes() - before)


@pytest.fixture(scope="session")
def replica_pool() -> Iterator[Callable[..., ReplicaPool]]:
    """`replica_pool(n)`: a job of n replicas that all tests share, since starting a framework and keras takes seconds.

    `replica_pool(n, backend="jax", processes=p)` is one with jax: one process, or p of them.
    """
    pools: dict[tuple[int, str, int | None], ReplicaPool] = {}

    def pool(replicas: int, backend: str = "torch", processes: int | None = None) -> ReplicaPool:
        key = (replicas, backend, processes)
        if key not in pools:
            pools[key] = _SharedPool(replicas=replicas, cpu_devices=replicas, backend=backend, processes=processes)
        return pools[key]

    yield pool
    with ThreadPoolExecutor() as closers:  # each takes a second or two to see its processes end
        list(closers.map(ReplicaPool.close, pools.values()))


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Answers]:
    """`two_workers(engine)`: what a job of two workers found, which is started when it is first asked for."""
    from tests.two_workers import ask  # a test takes this file alone elsewhere

    known: dict[str, Answers] = {}

    def answers(engine: str) -> Answers:
        if engine not in known:
            known[engine] = ask(engine, tmp_path_factory.mktemp(f"workers-{engine}"))
        return known[engine]

    return answers


@pytest.fixture(autouse=True)
def leaves_no_trace(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a variable, thread, child process, context or process group behind."""
    before = _Trace.take()
    yield
    left = _left_behind(before)
    deadline = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = _left_behind(before)
    _restore_environment(before.environment)
    if left:
        pytest.fail(f"{request.node.nodeid} left behind: {'; '.join(left)}", pytrace=False)


@dataclass(frozen=True, kw_only=True)
class _Trace:
    environment: dict[str, str]
    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    contexts: int
    process_group: bool

    @classmethod
    def take(cls) -> _Trace:
        return cls(
            environment=_environment(),
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon),
            processes=frozenset(_processes()),
            contexts=_contexts(),
            process_group=_has_process_group(),
        )


def _left_behind(before: _Trace) -> list[str]:
    now = _Trace.take()
    left = [
        f"the environment variable {name} ({before.environment.get(name)!r} -> {now.environment.get(name)!r})"
        for name in sorted(before.environment.keys() | now.environment.keys())
        if before.environment.get(name) != now.environment.get(name)
    ]
    left += [f"the thread {thread.name}" for thread in now.threads - before.threads]
    left += [
        f"the child process {pid} ({_command_line(pid)})"
        for pid in now.processes - before.processes - _shared_processes
    ]
    if now.contexts > before.contexts:
        left.append(f"{now.contexts - before.contexts} entries of the context stack")
    if now.process_group and not before.process_group:
        left.append("a torch process group")
    return left


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _SET_BY_LIBRARIES}


def _restore_environment(saved: dict[str, str]) -> None:
    for name in _environment().keys() - saved.keys():
        del os.environ[name]
    os.environ.update(saved)


def _processes() -> set[int]:
    """This process's children, less the one that Python keeps for shared memory."""
    if PROC.exists():
        found = {pid for pid, parent in _parents() if parent == os.getpid()}
    else:
        listing = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
        found = {int(pid) for pid in listing.stdout.split()}
    return found - {_resource_tracker()}


def _parents() -> Iterator[tuple[int, int]]:
    """Each process with its parent."""
    for path in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            # The name, in brackets, may hold brackets and spaces; its state and parent follow.
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])


def _resource_tracker() -> int | None:
    module: Any = sys.modules.get("multiprocessing.resource_tracker")
    return module and module._resource_tracker._pid


def _command_line(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_text().replace("\0", " ").strip() or "ended, never waited for"
    except OSError:
        return "no more is known of it"


def _contexts() -> int:
    module: Any = sys.modules.get("stratagem._core.contexts")
    return len(module._stack.entries) + (module._stack.base is not None) if module else 0


def _has_process_group() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed) and distributed.is_available() and distributed.is_initialized()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("stress") and "stress" not in str(item.config.getoption("-m")):
        pytest.skip("runs with -m stress")
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
