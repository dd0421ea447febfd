# SPDX-License-Identifier: Apache-2.0
"""Variables of every aggregation and synchronization do what custom.json recorded of TensorFlow's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.engines import ENGINES
from tests.golden import variable_probes

pytestmark = [pytest.mark.golden, pytest.mark.timeout(200)]

GOLDEN = json.loads(Path(__file__).with_name("custom.json").read_text())
RECORDED = GOLDEN["variables"]

# Per pattern of (program, aggregation, synchronization) what differs and why; docs/differences.md has the row `copies`.
SUMMED_WHERE_CAPTURED = "one eager tensor 3 captured by all replicas"


def numbers(recorded: Any) -> Any:
    """An answer of custom.json as `variable_probes` writes it."""
    if recorded is None or isinstance(recorded, (int, float)):
        return recorded
    if isinstance(recorded, list):
        return [numbers(one) for one in recorded]
    if "ok" in recorded:
        return numbers(recorded["ok"])
    if "error_type" in recorded:
        return {"error": recorded["error_type"]}
    for key in ("tensor", "numpy", "value", "values"):
        if key in recorded:
            return numbers(recorded[key])
    raise AssertionError(recorded)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The answers of all processes as one."""
    names = parts[0]
    return {name: _joined(name, [part[name] for part in parts]) for name in names}


def _joined(name: str, parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict) and "result" in first:
        return {key: _joined(key, [part[key] for part in parts]) for key in first}
    if name.startswith("after") and isinstance(first, list):
        return [_joined("", [part[n] for part in parts]) for n in range(len(first))]
    if isinstance(first, list):
        return [value for part in parts for value in part]
    return first


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, dict) and "error" in theirs:
        assert isinstance(ours, dict), f"{where}: {ours} where TensorFlow raises {theirs}"
        # Their TypeError and AttributeError are accidents; ours says the same kind of thing.
        kind = {"AttributeError": "TypeError"}.get(theirs["error"], theirs["error"])
        assert "StratagemError" in ours["error"], f"{where}: {ours}"
        assert {kind, "TypeError"} & set(ours["error"]), f"{where}: {ours}"
    elif isinstance(theirs, list) and isinstance(ours, list):
        assert len(ours) == len(theirs), f"{where}: {ours} instead of {theirs}"
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, where)
    elif theirs is None:
        assert ours is None, where
    else:
        assert isinstance(ours, float), f"{where}: {ours} instead of {theirs}"
        assert math.isclose(ours, theirs, rel_tol=1e-6), f"{where}: {ours} instead of {theirs}"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ", "AUTO"])
@pytest.mark.parametrize("aggregation", variable_probes.AGGREGATIONS)
def test_a_variable_is_written_and_read_as_recorded(
    engine: str, synchronization: str, aggregation: str, replica_pool: Any
) -> None:
    pool = replica_pool(2, backend=engine)
    everything = synchronization != "AUTO"  # AUTO is ON_WRITE, which one program shows
    answers = joined(
        pool.run(variable_probes.combination, synchronization, aggregation, everything, timeout_seconds=150)
    )
    recorded = RECORDED["replicas_2_float32"][f"synchronization={synchronization} aggregation={aggregation}"]
    asked = {name for name in recorded if name not in ("create", "initial_state", "experimental_local_results")}
    assert set(answers) == {name for name in asked if "read_var" not in name} or not everything
    for name, ours in answers.items():
        theirs = recorded[name]
        where = f"{synchronization} {aggregation} {name}"
        if isinstance(ours, dict) and "per_replica" in ours:
            _assert_state(ours, theirs, where, aggregation, synchronization)
        else:
            assert_same(ours, numbers(theirs), where)


def _assert_state(ours: Any, theirs: Any, where: str, aggregation: str, synchronization: str) -> None:
    on_read = synchronization == "ON_READ"
    if SUMMED_WHERE_CAPTURED in where and aggregation == "SUM" and not on_read:
        added = 10.0 if "assign_add" in where else 0.0
        assert ours["per_replica"] == [added + 6.0] * 2
        return
    expected = {key: numbers(theirs[key]) for key in ours}
    reads_what_it_wrote = isinstance(expected["result"], dict) and not isinstance(ours["result"], dict)
    if reads_what_it_wrote and on_read and aggregation == "NONE":
        # TensorFlow writes too, and then fails to read what it returns.
        expected["result"] = ours["result"]
    if isinstance(expected["result"], list) and not isinstance(ours["result"], list):
        # A write outside of replicas returns the value here, not one per replica.
        expected["result"] = expected["result"][0]
    for key in ours:
        assert_same(ours[key], expected[key], f"{where}: {key}")


@pytest.mark.parametrize("engine", ENGINES)
def test_variables_of_two_replicas_answer_as_recorded(engine: str, replica_pool: Any) -> None:
    recorded = RECORDED["other_2_replicas"]
    parts = replica_pool(2, backend=engine).run(variable_probes.others)
    for part in parts:
        assert part["init_callable_number_of_calls"][0] == recorded["init_callable_number_of_calls"]["ok"]["calls"]
        assert set(part["init_callable_number_of_calls"][1]) == {1.0}
        assert part["variable_created_in_scope"] == numbers(recorded["variable_created_in_scope"]) == [True, False]
        assert part["distribute_strategy_is_s"] is recorded["distribute_strategy_is_s"]["ok"]
        assert part["v.name / shape / dtype"] == [(2,), "float32"]
        for name in ("v * 2 outside", "v[0] slice outside"):
            assert part[name] == numbers(recorded[name])
        for name in ("variable_of_other_strategy_read_in_run", "variable_of_other_strategy_assign_in_scope"):
            assert recorded[name]["error_type"] in part[name]["error"]
            assert "MixedStrategyError" in part[name]["error"]
        assert part["value_container"] is recorded["value_container"]["ok"]
        assert set(map(tuple, part["of Keras"])) == {(2.0, 6.0)}, "keras.Variable(aggregation='sum') in a scope"
    assert len({tuple(value) for part in parts for value in part["drawn"]}) == 1
    for name in ("v * 2 in replica", "gradient_of_mirrored_variable_in_run"):
        assert [value for part in parts for value in part[name]] == numbers(recorded[name])


WORKERS = GOLDEN["multi_worker"]["variables"]
KINDS = [name for name in WORKERS["worker_0"] if name.startswith("synchronization=")]


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_of_two_workers_is_written_and_read_as_recorded(kind: str, engine: str, two_workers: Any) -> None:
    for worker, answers in enumerate(two_workers(engine).found):
        recorded, found = WORKERS[f"worker_{worker}"][kind], answers["variables"][kind]
        assert found.keys() == recorded.keys()
        for name, theirs in recorded.items():
            ours, where = found[name], f"worker {worker}, {kind}, {name}"
            assert theirs.keys() - {"type"} == ours.keys() - {"type"}
            expected = {part: numbers(theirs[part]) for part in ("result", "component", "outside_read")}
            if name.startswith("replica"):
                # Where its process has one replica TensorFlow's `run` returns a bare value (row `equal-values`).
                (ours["result"],) = ours["result"]
            if kind == "synchronization=ON_READ aggregation=NONE" and name.startswith("cross"):
                # TensorFlow writes too, and then fails to read what it returns (row `write-result`).
                assert expected["result"] == {"error": "ValueError"}
                expected["result"] = expected["component"]
            if kind.endswith("ONLY_FIRST_REPLICA") and name.startswith("replica"):
                # TensorFlow's workers have a first replica each (row `first-replica`).
                of_first = WORKERS["worker_0"][kind][name]
                ours_differ = ("outside_read",) if "ON_READ" in kind else expected
                expected |= {part: numbers(of_first[part]) for part in ours_differ}
            for part, value in expected.items():
                assert_same(ours[part], value, f"{where}: {part}")
            # TensorFlow's MirroredVariable and SyncOnReadVariable are one class here (row `variable-class`).
            assert ours["type"] == "DistributedVariable", where


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_worker_gives_a_variable_its_initial_value(engine: str, two_workers: Any) -> None:
    name = "init w+5 differs by worker: value after creation"
    for worker, answers in enumerate(two_workers(engine).found):
        theirs = WORKERS[f"worker_{worker}"]
        assert answers["variables"][name] == numbers(theirs[name]) == 5.0
        assert answers["variables"].keys() == theirs.keys(), "every recorded entry is asked for"
