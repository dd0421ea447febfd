# SPDX-License-Identifier: Apache-2.0
"""Stratagem's answers against those recorded from TensorFlow (custom.json), on the fake engine and on processes.

Where an answer differs on purpose, DIFFERENCES says what ours is and names the row of docs/differences.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from golden import custom_probes, custom_records

from stratagem.engines import select
from stratagem.testing import ReplicaPool
from stratagem.testing.fake_engine import FakeEngine

GOLDEN = json.loads(Path(__file__).with_name("custom.json").read_text())
DIFFERENCES_PAGE = Path(__file__).parents[2] / "docs" / "differences.md"

CASES = [
    (section, replicas)
    for section in custom_probes.SECTIONS
    for replicas in (
        [n for n in (1, 2, 4) if f"replicas_{n}" in GOLDEN[section]]
        if any(name.startswith("replicas_") for name in GOLDEN[section])
        else [1 if section == "one_device" else 2]
    )
]


@dataclass(frozen=True)
class Difference:
    """An answer that is not TensorFlow's.

    Attributes:
        row: The row of docs/differences.md; "wording" where only this test asks in other words.
        ours: What ours is: {"ok": value}, or the name of the built-in class that our error is.
    """

    row: str
    ours: Any


def _scalar(value: Any, dtype: str) -> dict[str, Any]:
    return {"ok": {"tensor": value, "dtype": dtype}}


def _context_of(strategy: str, *, in_scope: bool) -> dict[str, Any]:
    return {
        "has_strategy": in_scope,
        "in_cross_replica_context": in_scope,
        "get_replica_context": not in_scope,
        "get_strategy": strategy,
        "replica_id": None if in_scope else "0",
    }


_CPU = "/job:localhost/replica:0/task:0/device:CPU:{}"
_BARE_TWICE = {"ok": {"tensor": 2, "dtype": "int32"}}

# The first pattern that matches "section/replicas/path" counts.
DIFFERENCES: dict[str, Difference] = {
    "run/1/context_devices": Difference("devices", {"ok": [_CPU.format(0)]}),
    **{
        f"run/{n}/context_devices": Difference(
            "devices", {"ok": [{"type": "PerReplica", "values": [_CPU.format(i) for i in range(n)]}]}
        )
        for n in (2, 4)
    },
    "run/1/merge_call_sees_per_replica": Difference("wording", {"ok": False}),
    "run/[24]/merge_call_sees_per_replica": Difference("wording", {"ok": True}),
    "reduce/2/other/python_zero_SUM": Difference("plain-sum", "ValueError"),
    "reduce/2/other/python_ints_returned_by_run": Difference("python-numbers", _scalar(3, "int32")),
    "reduce/2/other/same_python_int_returned_by_run": Difference("equal-values", _BARE_TWICE),
    "reduce/2/other/mirrored_variable_SUM": Difference("plain-sum", "ValueError"),
    "reduce/2/other/mean_axis0_of_dict_uneven": Difference(
        "nested-mean", {"ok": {"a": {"tensor": 7 / 3, "dtype": "float32"}}}
    ),
    "gather/2/string/*": Difference("strings", "TypeError"),
    "gather/2/other/gather_dict": Difference(
        "nested-gather", {"ok": {"a": {"tensor": [0.0, 1.0], "dtype": "float32"}}}
    ),
    "gather/2/other/gather_list": Difference("nested-gather", {"ok": [{"tensor": [0.0, 1.0], "dtype": "float32"}] * 2}),
    "gather/2/other/all_gather_python_list_of_floats": Difference("gather-scalars", "ValueError"),
    "all_reduce/2/*/empty list": Difference("empty", {"ok": []}),
    "all_reduce/2/SUM/python float 2.0": Difference("python-numbers", _scalar(4.0, "float32")),
    "all_reduce/2/MEAN/python float 2.0": Difference("python-numbers", _scalar(2.0, "float32")),
    "all_reduce/2/SUM/python list [[]1.0, 2.0]": Difference(
        "python-numbers", {"ok": [{"tensor": 2.0, "dtype": "float32"}, {"tensor": 4.0, "dtype": "float32"}]}
    ),
    "all_reduce/2/MEAN/python list [[]1.0, 2.0]": Difference(
        "python-numbers", {"ok": [{"tensor": 1.0, "dtype": "float32"}, {"tensor": 2.0, "dtype": "float32"}]}
    ),
    "values_from_function/*/in_replica_context": Difference("replica-values", "RuntimeError"),
    "contexts/2/in_extended_update_ctx": Difference(
        "wording", {"ok": [_context_of("MirroredStrategy", in_scope=True)]}
    ),
    "contexts/2/in_values_from_function": Difference(
        "wording", {"ok": [_context_of("DefaultStrategy", in_scope=False)]}
    ),
    "contexts/2/default_strategy/merge_call": Difference("wording", {"ok": [True, True, 1]}),
    "errors/2/strategy_public_names": Difference(
        "public-names",
        {"ok": sorted([*GOLDEN["errors"]["strategy_public_names"], "check_gradients", "compile_for", "shard_report"])},
    ),
    "errors/2/MirroredStrategy(device that does not exist)": Difference("absent-device", "ValueError"),
    "errors/2/MirroredStrategy(GPU:0) without a GPU": Difference("absent-device", "ValueError"),
    "errors/2/MirroredStrategy(cross_device_ops='x')": Difference("bad-ops", "TypeError"),
}

_TRACED_NUMBERS = {
    n: {"ok": {"type": "PerReplica", "values": [{"tensor": 3, "dtype": "int32"}] * n}} for n in (1, 2, 4)
}
_IN_RUN = _context_of("MirroredStrategy", in_scope=True) | {
    "in_cross_replica_context": False,
    "get_replica_context": True,
    "replica_id": "JitTracer(int32[])",
}


def _float32(value: Any) -> dict[str, Any]:
    return {"ok": {"tensor": value, "dtype": "float32"}}


# With jax a function given to run() is traced once for all replicas; these come before DIFFERENCES there.
JAX_DIFFERENCES: dict[str, Difference] = {
    **{
        f"run/{n}/context_devices": Difference(
            "traced-devices",
            {"ok": [{"type": "PerReplica", "values": [_CPU.format(i)] * n} for i in range(n)]},
        )
        for n in (2, 4)
    },
    "run/1/python_arg": Difference("traced-numbers", _scalar(3, "int32")),
    **{f"run/{n}/python_arg": Difference("traced-numbers", _TRACED_NUMBERS[n]) for n in (2, 4)},
    **{
        f"run/{n}/different_python_values": Difference(
            "traced-numbers",
            {"ok": {"type": "PerReplica", "values": [{"tensor": i, "dtype": "int32"} for i in range(n)]}},
        )
        for n in (2, 4)
    },
    "run/2/exception_in_replica": Difference(
        "traced-errors",
        {"ok": {"type": "PerReplica", "values": [{"tensor": i, "dtype": "int32"} for i in (1, -2)]}},
    ),
    "run/4/exception_in_replica": Difference(
        "traced-errors",
        {"ok": {"type": "PerReplica", "values": [{"tensor": i, "dtype": "int32"} for i in (1, -2, -1, -1)]}},
    ),
    "run/*/none_on_one_replica": Difference("traced-branches", "TypeError"),
    "errors/2/merge_call_on_only_one_replica": Difference("traced-branches", "TypeError"),
    "errors/2/all_reduce_on_only_one_replica": Difference("traced-branches", "TypeError"),
    "errors/2/different_merge_fns": Difference("traced-branches", "TypeError"),
    "gather/2/uneven_*/all_gather*": Difference("traced-shapes", "ValueError"),
    "gather/2/empty_on_replica_1/all_gather*": Difference("traced-shapes", "ValueError"),
    "gather/2/int/all_gather*": Difference("traced-shapes", "ValueError"),
    "gather/2/bool/all_gather*": Difference("traced-shapes", "ValueError"),
    "reduce/2/int_scalars/MEAN axis=None": Difference("jax-integers", _float32(1.5)),
    "reduce/2/int_vectors/MEAN axis=None": Difference("jax-integers", _float32([2.0, 3.5])),
    "reduce/2/int_vectors/MEAN axis=0": Difference("jax-integers", _float32(2.75)),
    "all_reduce/2/MEAN/int32 scalar i+1": Difference(
        "jax-integers", {"ok": {"type": "PerReplica", "values": [{"tensor": 1.5, "dtype": "float32"}] * 2}}
    ),
    "one_device/1/ctx_in_run": Difference(
        "traced-numbers", {"ok": json.dumps(_IN_RUN | {"get_strategy": "OneDeviceStrategy"})}
    ),
    "contexts/2/in_run*": Difference(
        "traced-numbers", {"ok": {"type": "PerReplica", "values": [json.dumps(_IN_RUN)] * 2}}
    ),
}

# Paths of custom.json that no probe asks, with the reason.
NOT_ASKED = {
    "*in tf.function*": "there is no tf.function",
    "*in_tf_function*": "there is no tf.function",
    "contexts/tf.function*": "there is no tf.function",
    "*/input": "the input, not an answer",
    "run/replica_id_python_type": "a Python int (replica-id)",
    "run/tensor_device": "a question to the framework",
    "one_device/run_result_*": "a question to the framework",
    "gather/other/gather_mirrored_variable": "variables per replica are not built yet (plain-gather)",
    "all_reduce/*/IndexedSlices": "Keras on PyTorch has no IndexedSlices",
    "local_results/mirrored_variable": "variables per replica are not built yet",
    "local_results/sync_on_read_variable": "variables per replica are not built yet",
    "local_results/in_replica_context": "inside a replica there is nothing to list",
    "local_results/PerReplica_isinstance_types.PerReplica": "not a name of tf.distribute",
    "local_results/PerReplica_str": "tests/unit/test_values.py has it",
    "local_results/one_device_run_result": "section one_device has it",
    "one_device/*variable*": "variables per replica are not built yet",
    "one_device/dataset*": "distributed data sets are not built yet",
    "contexts/in_dataset_fn": "distributed data sets are not built yet",
    "contexts/default_strategy/experimental_distribute_dataset_type": "tests/unit/test_strategies.py has it",
    "contexts/default_strategy_type": "a private name of TensorFlow",
    "contexts/in_extended_update": "in_extended_update_ctx has it",
    "*/extended/*": "not public, or of TensorFlow 1",
    "errors/extended.*": "variables per replica are not built yet",
    "errors/MirroredStrategy() no GPU": "devices=[] means the same",
    "errors/default_cross_device_ops_on_cpu": "a private name of TensorFlow",
    "errors/tf.distribute*public_names": "tests/unit/test_public_names.py has it",
    "errors/strategy_repr": "tests/unit/test_strategies.py has it",
}


@pytest.mark.golden
@pytest.mark.parametrize(("section", "replicas"), CASES)
def test_fake_engine_answers_as_tensorflow(section: str, replicas: int) -> None:
    with select.use(FakeEngine(4 if section != "one_device" else 2)):
        records = custom_probes.record_section(section, replicas)
    _compare(section, replicas, records)


@pytest.mark.golden
@pytest.mark.integration
@pytest.mark.parametrize(("section", "replicas"), CASES)
def test_processes_answer_as_tensorflow(
    section: str, replicas: int, replica_pool: Callable[[int], ReplicaPool]
) -> None:
    parts = replica_pool(replicas).run(custom_probes.record_section, section, replicas)
    records = custom_records.joined(parts)
    if section == "errors":
        # A job of two processes has two devices, where TensorFlow was recorded with four.
        assert len(records.pop("MirroredStrategy(devices=[])")["ok"]) == replicas
    if section == "one_device":
        # Recorded on the second of two devices.
        for name in ("extended/worker_devices", "extended/parameter_devices"):
            assert records.pop(name) == {"ok": {"tuple": [_CPU.format(0)]}}
    _compare(section, replicas, records)


@pytest.mark.golden
@pytest.mark.integration
@pytest.mark.parametrize(("section", "replicas"), CASES)
def test_jax_answers_as_tensorflow(section: str, replicas: int, replica_pool: Callable[..., ReplicaPool]) -> None:
    (records,) = replica_pool(replicas, backend="jax").run(custom_probes.record_section, section, replicas)
    if section == "errors":
        # This process has two devices, where TensorFlow was recorded with four.
        assert len(records.pop("MirroredStrategy(devices=[])")["ok"]) == replicas
    if section == "one_device":
        # Recorded on the second of two devices.
        for name in ("extended/worker_devices", "extended/parameter_devices"):
            assert records.pop(name) == {"ok": {"tuple": [_CPU.format(0)]}}
    _compare(section, replicas, records, JAX_DIFFERENCES)


@pytest.mark.golden
def test_every_recorded_answer_is_asked_for_or_has_a_reason() -> None:
    asked: set[str] = set()
    with select.use(FakeEngine(4)):
        for section, replicas in CASES:
            asked |= {f"{section}/{name}" for name in custom_probes.SECTIONS[section](replicas)}
    gradients = {path for path in _recorded() if "gradient" in path}  # on processes: numpy has none
    unasked = {
        path for path in _recorded() - asked - gradients if not any(fnmatchcase(path, pattern) for pattern in NOT_ASKED)
    }
    assert not unasked
    useless = [pattern for pattern in NOT_ASKED if not any(fnmatchcase(path, pattern) for path in _recorded() - asked)]
    assert not useless


@pytest.mark.golden
def test_every_difference_is_documented() -> None:
    rows = {line.split("|")[1].strip().strip("`") for line in DIFFERENCES_PAGE.read_text().splitlines() if "|" in line}
    known = [*DIFFERENCES.values(), *JAX_DIFFERENCES.values()]
    assert {difference.row for difference in known} <= rows | {"wording"}


def _recorded() -> set[str]:
    return {f"{section}/{path}" for section, replicas in CASES for path in _golden(section, replicas)}


def _golden(section: str, replicas: int) -> dict[str, Any]:
    recorded = GOLDEN[section]
    return custom_records.leaves(recorded.get(f"replicas_{replicas}", recorded))


def _compare(
    section: str, replicas: int, records: dict[str, Any], first: Mapping[str, Difference] | None = None
) -> None:
    golden = _golden(section, replicas)
    wrong = []
    for name, record in records.items():
        path = f"{section}/{replicas}/{name}"
        difference = _difference(path, first or {}) or _difference(path, DIFFERENCES)
        expected = golden[name] if difference is None else difference.ours
        if not _agrees(record, expected):
            wrong.append(f"{section}/{replicas}/{name}: {record} instead of {expected}")
    assert not wrong, "\n".join(wrong)


def _difference(path: str, known: Mapping[str, Difference]) -> Difference | None:
    return next((found for pattern, found in known.items() if fnmatchcase(path, pattern)), None)


def _agrees(record: dict[str, Any], expected: Any) -> bool:
    if isinstance(expected, str):
        return "StratagemError" in record.get("error", ()) and expected in record["error"]
    if "error_type" in expected:
        return _same_kind(record, expected)
    return "ok" in record and _same(record["ok"], expected["ok"])


def _same_kind(record: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether our error can be caught as TensorFlow's: its built-in class, or ValueError / TypeError for tf.errors."""
    kinds = set(record.get("error", ()))
    theirs = expected["error_mro"]
    if "OpError" in theirs or "AssertionError" in theirs:
        return bool(kinds & {"ValueError", "TypeError"}) and "StratagemError" in kinds
    return theirs[0] in kinds


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict) and ours.get("type") == "PerReplica" and not _is_distributed(theirs):
        # TensorFlow unwraps what is the same object on every replica.
        return all(_same(value, theirs) for value in ours["values"])
    if isinstance(theirs, dict) and "numpy" in theirs:
        theirs = {"tensor": theirs["numpy"], "dtype": theirs["dtype"]}
    if isinstance(theirs, dict) and "tensor" in theirs:
        if isinstance(ours, int) and theirs["dtype"] == "int32":
            return ours == theirs["tensor"]
        return (
            isinstance(ours, dict) and ours.get("dtype") == theirs["dtype"] and _close(ours["tensor"], theirs["tensor"])
        )
    if isinstance(theirs, dict) and "value" in theirs:
        return isinstance(ours, dict) and _same(ours["value"], theirs["value"])
    if isinstance(theirs, dict) and "has_strategy" in theirs:
        return _as_context(ours) == _as_context(theirs)
    if isinstance(theirs, str) and theirs.startswith("{"):
        return _same(json.loads(ours), json.loads(theirs))
    if isinstance(theirs, dict):
        return (
            isinstance(ours, dict) and ours.keys() == theirs.keys() and all(_same(ours[k], theirs[k]) for k in theirs)
        )
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return ours == theirs


def _is_distributed(value: Any) -> bool:
    return isinstance(value, dict) and "values" in value


def _as_context(context: dict[str, Any]) -> dict[str, Any]:
    """A context with TensorFlow's private class names made ours."""
    there = context["get_replica_context"]
    names = {"_DefaultDistributionStrategy": "DefaultStrategy"}
    return context | {
        "get_replica_context": there if isinstance(there, bool) else there != "NoneType",
        "get_strategy": names.get(context["get_strategy"], context["get_strategy"]),
    }


def _close(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(_close, ours, theirs))
    if theirs == "nan":
        return math.isnan(ours)
    if isinstance(theirs, bool | str):
        return ours == theirs
    return math.isclose(ours, theirs, rel_tol=1e-6)
