# SPDX-License-Identifier: Apache-2.0
"""Every engine keeps every promise of engines/base.py, for every number of replicas and every transport."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stratagem.engines import select
from stratagem.engines.base import Engine
from stratagem.engines.jax import JaxEngine
from stratagem.engines.torch import TorchEngine
from stratagem.testing import ReplicaPool
from stratagem.testing.fake_engine import FakeEngine
from tests.contract import promises
from tests.contract.jax_promises import JAX_PROMISES
from tests.contract.jobs import Outcome, RunJob
from tests.contract.promises import PROMISES
from tests.contract.torch_promises import TORCH_PROMISES
from tests.engines import thorough

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True)
class Row:
    """An engine as it is used: with what between how many replicas."""

    engine: str
    transport: str
    replicas: int

    def __str__(self) -> str:
        return f"{self.engine}-{self.transport}-{self.replicas}"


TORCH_ROWS = (
    Row("torch", "auto", 1),
    Row("torch", "shared_memory", 2),
    Row("torch", "shared_memory", 3),
    Row("torch", "process_group", 2),
    Row("torch", "process_group", 3),
)
FAKE_ROWS = tuple(Row("fake", "threads", replicas) for replicas in (1, 2, 3))
# Processes, and the replicas over all of them.
JAX_TOPOLOGIES = ((1, 1), thorough((1, 2)), thorough((1, 4)), (2, 4), thorough((4, 4)))
# An engine's own before the last one, which leaves the job.
*_FIRST, _LAST = PROMISES
_OWN = {"torch": TORCH_PROMISES, "jax": JAX_PROMISES}
ALL_PROMISES = {
    engine: {**{name: PROMISES[name] for name in _FIRST}, **own, _LAST: PROMISES[_LAST]} for engine, own in _OWN.items()
}
ENGINES: tuple[type[Engine], ...] = (TorchEngine, JaxEngine, FakeEngine)


@pytest.fixture(scope="module")
def kept(run_job: RunJob) -> Callable[[Row, str], None]:
    """`kept(row, name)` checks what a job of that row, made at the first call, found of that promise."""
    found: dict[Row, list[Outcome]] = {}

    def check(row: Row, name: str) -> None:
        if row not in found:
            found[row] = run_job(keep_all, row.replicas, row.transport)
        for replica, outcome in enumerate(found[row]):
            assert outcome.error is None, outcome.text
            problem = outcome.value.get(name, "an earlier promise was not kept")
            assert problem is None, f"replica {replica}: {problem}"

    return check


def keep_all(*_rank: int) -> dict[str, str | None]:
    """Each promise with what is wrong with it; runs in a replica's process, until a promise is broken."""
    found: dict[str, str | None] = {}
    engine = select.engine()
    engine.connect(engine.local_devices())
    for name, promise in ALL_PROMISES[engine.name].items():
        try:
            promise(engine)
        except Exception:  # noqa: BLE001 - the test gets it
            found[name] = traceback.format_exc()
            break
        found[name] = None
    return found


@pytest.mark.parametrize("row", TORCH_ROWS, ids=str)
@pytest.mark.parametrize("name", ALL_PROMISES["torch"])
def test_the_torch_engine_promises_that(kept: Callable[[Row, str], None], row: Row, name: str) -> None:
    kept(row, name)


@pytest.fixture(scope="module")
def kept_by_jax() -> Callable[[tuple[int, int], str], None]:
    """`kept_by_jax((processes, replicas), name)` checks what a job like that found of that promise."""
    found: dict[tuple[int, int], list[dict[str, str | None]]] = {}

    def check(topology: tuple[int, int], name: str) -> None:
        if topology not in found:
            processes, replicas = topology
            with ReplicaPool(replicas=replicas, cpu_devices=replicas, backend="jax", processes=processes) as pool:
                found[topology] = pool.run(keep_all)
        for rank, problems in enumerate(found[topology]):
            problem = problems.get(name, "an earlier promise was not kept")
            assert problem is None, f"process {rank}: {problem}"

    return check


@pytest.mark.timeout(180)
@pytest.mark.parametrize("topology", JAX_TOPOLOGIES, ids=lambda topology: f"{topology[0]}x{topology[1] // topology[0]}")
@pytest.mark.parametrize("name", ALL_PROMISES["jax"])
def test_the_jax_engine_promises_that(
    kept_by_jax: Callable[[tuple[int, int], str], None], topology: tuple[int, int], name: str
) -> None:
    kept_by_jax(topology, name)


@pytest.mark.parametrize("row", FAKE_ROWS, ids=str)
@pytest.mark.parametrize("name", PROMISES)
def test_the_fake_engine_promises_that(row: Row, name: str) -> None:
    engine = FakeEngine(row.replicas)
    engine.connect(engine.local_devices())
    PROMISES[name](engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_has_the_signatures_of_the_contract(engine: type[Engine]) -> None:
    for name in sorted(Engine.__abstractmethods__):
        base, own = inspect.getattr_static(Engine, name), inspect.getattr_static(engine, name)
        assert isinstance(own, property) == isinstance(base, property), name
        if not isinstance(base, property):
            theirs, ours = inspect.signature(base), inspect.signature(own)
            assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
                (p.name, p.kind, p.default) for p in theirs.parameters.values()
            ], name


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_says_what_it_is(engine: type[Engine]) -> None:
    assert engine.name in ("torch", "jax", "fake")
    assert engine.capabilities.many_replicas_per_process == (engine is not TorchEngine)
    assert engine.capabilities.traced_functions == (engine is JaxEngine)


@pytest.mark.parametrize("name", sorted(Engine.__abstractmethods__))
def test_every_method_of_the_contract_has_a_promise(name: str) -> None:
    texts = [inspect.getsource(function) for function in PROMISES.values()] + [inspect.getsource(promises.reduced)]
    assert any(f"engine.{name}" in text for text in texts)
