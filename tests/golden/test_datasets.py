# SPDX-License-Identifier: Apache-2.0
"""Which replica gets which rows in which step: as recorded from TensorFlow (custom.json), on both engines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden import dataset_probes

from stratagem.testing import ReplicaPool
from tests.engines import ENGINES, thorough

GOLDEN = json.loads(Path(__file__).with_name("custom.json").read_text())

# Each has its row in docs/differences.md.
ERRORS = {
    "unbatched n=4": "ArgumentTypeError",
    "distribute_numpy_array": "ArgumentTypeError",
    "distribute_a_distributed_dataset": "ArgumentTypeError",
    "InputOptions(PER_REPLICA) via experimental_distribute_dataset": "ArgumentError",
    "distribute_in_replica_context": "ContextError",
    "returns_non_dataset": "ArgumentTypeError",
}
NOT_ASKED = {"for_loop_in_tf_function_sum n=10 gb=4", "is_DistributedDataset", "is_DistributedIterator"}


def merged(found: list[Any]) -> Any:
    """What all processes hold, as TensorFlow's one process: a step is the list of all replicas' rows."""
    first = found[0]
    if isinstance(first, dict) and first and all(isinstance(key, int) for key in first):
        rows = {replica: part for one in found for replica, part in one.items()}
        return [rows[replica] for replica in sorted(rows)]
    if isinstance(first, dict):
        return {key: merged([one[key] for one in found]) for key in first}
    if isinstance(first, list):
        assert len({len(one) for one in found}) == 1, found
        return [merged(list(parts)) for parts in zip(*found, strict=True)]
    assert all(one == first for one in found), found
    return first


Pools = Callable[..., ReplicaPool]


@pytest.fixture(scope="module")
def asked(replica_pool: Pools) -> Callable[[str, int], list[Any]]:
    """By engine and number of replicas, what the processes found."""
    known: dict[tuple[str, int], list[Any]] = {}

    def ask(engine: str, replicas: int) -> list[Any]:
        if (engine, replicas) not in known:
            pool = replica_pool(replicas, backend=engine)
            known[engine, replicas] = pool.run(dataset_probes.probe, replicas, timeout_seconds=120)
        return known[engine, replicas]

    return ask


@pytest.mark.golden
@pytest.mark.parametrize("engine", ENGINES)
def test_every_replica_gets_the_recorded_rows_of_every_batch(asked: Any, engine: str) -> None:
    recorded = GOLDEN["datasets"]["replicas_2"]
    found = merged([one["datasets"] for one in asked(engine, 2)])
    for name, answer in found.items():
        if name == "other":
            continue
        theirs = recorded[name]["ok"]
        assert answer["steps"] == theirs["steps"], name
        assert answer["cardinality"] == theirs["cardinality"]["ok"], name
        assert answer["type"] == theirs["type"]
        shape = re.search(r"shape=\((.*?),?\)", theirs["element_spec"])
        assert shape is not None
        assert list(answer["shape"]) == [None if size == "None" else int(size) for size in shape[1].split(",")], name
    assert found.keys() == {name for name in recorded if not name.startswith("_")}


@pytest.mark.golden
@pytest.mark.parametrize("engine", ENGINES)
def test_pipelines_of_every_shape_give_the_recorded_rows_or_an_error_that_says_what_to_do(
    asked: Any, engine: str
) -> None:
    recorded = GOLDEN["datasets"]["replicas_2"]["other"]
    found = merged([one["datasets"]["other"] for one in asked(engine, 2)])
    for name, answer in found.items():
        if name in ERRORS:
            assert answer["error"][0] == ERRORS[name], (name, answer)
            assert "\n  fix: " in answer["text"]
        else:
            assert answer["ok"] == _ours(recorded[name]["ok"]), name
    assert found.keys() | NOT_ASKED == recorded.keys()


def _ours(answer: Any) -> Any:
    if isinstance(answer, dict) and answer.get("get_next_past_end"):
        assert answer["get_next_past_end"] == "OutOfRangeError"
    return answer


@pytest.mark.golden
@pytest.mark.parametrize(
    ("engine", "replicas"), [("torch", 1), ("torch", 2), thorough("torch", 4), ("jax", 2), ("jax", 4)]
)
def test_data_sets_of_a_function_give_the_recorded_rows(asked: Any, engine: str, replicas: int) -> None:
    recorded = GOLDEN["datasets_from_function"][f"replicas_{replicas}"]
    processes = [one["datasets_from_function"] for one in asked(engine, replicas)]
    # Only the process that reads for its worker calls the function.
    contexts, of_replicas = processes[0].pop("contexts"), processes[0].pop("PER_REPLICA_mode_contexts")
    for other in processes[1:]:
        assert other.pop("contexts") == other.pop("PER_REPLICA_mode_contexts") == []
    theirs = recorded["input_context"][0]
    fields = ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")
    assert contexts == [[theirs[field] for field in fields]]
    assert of_replicas == recorded["PER_REPLICA_mode_contexts"]
    failed = [one.pop("returns_non_dataset") for one in processes]
    assert failed[0]["error"][0] == ERRORS["returns_non_dataset"]
    assert all(one["error"][0] == "ReplicaFailedError" for one in failed[1:])
    found = merged(processes)
    assert found.pop("experimental_name_still_exists") is True
    for name, answer in found.items():
        assert answer["ok"] == recorded[name]["ok"], name


@pytest.mark.golden
@pytest.mark.integration
@pytest.mark.parametrize("engine", ["torch", thorough("jax")])  # both read by the same code
def test_two_workers_get_the_recorded_rows_by_every_policy(two_workers: Any, engine: str) -> None:
    found = [one["datasets"] for one in two_workers(engine).found]
    for worker in (0, 1):
        for part in ("dataset_data", "dataset_off", "dataset_auto", "dataset_fn"):
            for name, recorded in GOLDEN["multi_worker"][part][f"worker_{worker}"].items():
                theirs = recorded if isinstance(recorded, list) else recorded["ok"]
                theirs = theirs["steps"] if isinstance(theirs, dict) else theirs
                assert found[worker][name] == theirs, (worker, name)
    assert [found[worker]["an empty worker"] for worker in (0, 1)] == [
        [[[]], [[]], [[]]],
        [[[0, 1]], [[2, 3]], [[4]]],
    ]
    first, second = (_rows(found[worker]["nobody knows how many"]) for worker in (0, 1))
    assert (first, second) == ([3, 4], list(range(3, 35)))
    assert len(found[0]["nobody knows how many"]) == len(found[1]["nobody knows how many"]) == 16
    assert [_rows(found[worker]["3 files"]) for worker in (0, 1)] == [[0, 1, 2, 20, 21, 22], [10, 11, 12]]
    assert [found[worker]["1 files"] for worker in (0, 1)] == [[[[0, 1]]], [[[2]]]]
    assert ": FILE, each worker reads its share of the files" in found[0]["report 3 files"]
    assert ": DATA, 1 file is fewer than workers" in found[0]["report 1 files"]
    assert ": DATA, it reads no files" in found[0]["report AUTO"]


def _rows(steps: list[Any]) -> list[int]:
    return [row for step in steps for part in step for row in part]
