# SPDX-License-Identifier: Apache-2.0
"""The names and signatures of tf.distribute, and which of them are not built yet."""

from __future__ import annotations

import enum
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import stratagem as distribute
from stratagem._core.unbuilt import NAMES
from stratagem.engines import select
from stratagem.errors import NotBuiltError
from stratagem.testing.fake_engine import FakeEngine

API: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("tf_distribute_api.json").read_text())

# A class that takes no arguments of its own, or a tuple whose fields are checked instead.
NO_SIGNATURE = "(self, /, *args, **kwargs)"
OURS = {
    "ArrayDataset",
    "ShardReport",
    "Variable",
    "BackupAndRestore",
    "Checkpoint",
    "CheckpointManager",
    "__version__",
    "compute_average_loss",
    "config",
    "errors",
    "function",
    "launch",
    "scale_regularization_loss",
    "testing",
    "tpu",
    "value_and_grad",
}
ELSEWHERE = {"AutoShardPolicy", "VariableAggregation", "VariableSynchronization"}  # in tf or tf.data
MODULES = {"cluster_resolver", "coordinator", "experimental"}
OURS_IN_PACKAGES = {"cluster_resolver": {"ClusterSpec", "MPIClusterResolver", "TorchrunClusterResolver"}}


def _ours(name: str) -> Any:
    found: Any = distribute
    for part in _short(name).split("."):
        found = getattr(found, part)
    return found


def _short(name: str) -> str:
    return name.removeprefix("tf.").removeprefix("data.experimental.").removeprefix("distribute.")


def test_all_63_names_are_there() -> None:
    assert len(API) == 63
    for name in API:
        assert _ours(name) is not None


def test_the_top_level_has_no_other_names() -> None:
    top = {_short(name).split(".")[0] for name in API}
    assert set(distribute.__all__) == set(dir(distribute)) == top | OURS
    assert top >= ELSEWHERE | MODULES
    with pytest.raises(AttributeError, match="module 'stratagem' has no attribute 'MirorredStrategy'"):
        distribute.MirorredStrategy  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("package", ["experimental", "cluster_resolver", "coordinator"])
def test_the_packages_have_no_other_names(package: str) -> None:
    found = set(getattr(distribute, package).__all__)
    names = {_short(name) for name in API}
    expected = {name.split(".")[1] for name in names if name.startswith(f"{package}.")}
    assert found == expected | OURS_IN_PACKAGES.get(package, set())


def test_what_raises_is_what_the_table_says() -> None:
    raising = set()
    for name in API:
        value = _ours(name)
        if inspect.isclass(value) and issubclass(value, enum.Enum):
            continue
        try:
            with select.use(FakeEngine(1)):
                value()
        except NotBuiltError as error:
            raising.add(_short(name))
            assert f"tf.distribute.{_short(name)} is not built yet; it is planned for release" in str(error)  # noqa: PT017
            assert "fix: today: " in str(error)  # noqa: PT017
        except (TypeError, distribute.errors.StratagemError):
            pass  # built: it only wants arguments, or an engine
    assert raising == set(NAMES)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (distribute.Server.create_local_server, "Server"),
        (lambda: distribute.experimental.rpc.Server.create("grpc", "host:1"), "experimental.rpc.Server"),
        (lambda: distribute.experimental.rpc.Client.create("grpc", "host:1"), "experimental.rpc.Client"),
    ],
)
def test_static_methods_of_what_is_not_built_raise_too(call: Any, name: str) -> None:
    with pytest.raises(NotBuiltError, match=f"tf.distribute.{name} is not built yet"):
        call()


def test_an_unbuilt_class_can_be_named_and_asked_about() -> None:
    assert not isinstance([], distribute.DistributedDataset)
    assert distribute.MultiWorkerMirroredStrategy.__name__ == "MultiWorkerMirroredStrategy"


def test_every_plan_is_used() -> None:
    assert all(plan.release and plan.instead for plan in NAMES.values())


@pytest.mark.parametrize("name", sorted(set(API) - {f"tf.distribute.{name}" for name in NAMES}))
def test_signatures_are_those_of_tensorflow(name: str) -> None:
    entry, ours = API[name], _ours(name)
    members = entry.get("members", {})
    if entry["kind"] == "function":
        assert _shape(inspect.signature(ours)) == _wanted(entry["signature"])
    elif entry["kind"] == "enum":
        assert list(ours.__members__) == entry["members"]
    elif "Enum" in entry["bases"]:
        assert set(ours.__members__) >= set(entry.get("enum", members)) - {"name", "value"}
    else:
        for member, signature in members.items():
            _check_member(ours, member, signature)


def _check_member(ours: Any, member: str, signature: str) -> None:
    found = inspect.getattr_static(ours, member)
    where = f"{ours.__name__}.{member}"
    if signature == "property":
        assert isinstance(found, property), where
    elif signature == "attribute":
        assert hasattr(ours, member), where
    elif signature != NO_SIGNATURE and not issubclass(ours, tuple):
        assert _shape(inspect.signature(found)) == _wanted(signature), where


def _shape(signature: inspect.Signature) -> list[tuple[str, str]]:
    return [
        (name, "" if parameter.default is parameter.empty else _default(repr(parameter.default)))
        for name, parameter in signature.parameters.items()
    ]


def _wanted(signature: str) -> list[tuple[str, str]]:
    signature = signature.removeprefix("staticmethod ").partition(" -> ")[0].strip("()")
    text = re.sub(r"<(\w+)\.(\w+): [^>]*>", r"<\1.\2>", signature)
    parts = [part.strip() for part in re.split(r",\s*(?![^(]*\))", text) if part.strip()]
    return [(part.partition("=")[0].partition(":")[0].strip(" *"), part.partition("=")[2].strip()) for part in parts]


def _default(text: str) -> str:
    return re.sub(r"<(\w+)\.(\w+): [^>]*>", r"<\1.\2>", text)


def test_the_fields_of_the_option_tuples_are_those_of_tensorflow() -> None:
    assert tuple(distribute.RunOptions()) == (True, False, None)
    assert tuple(distribute.InputOptions()) == (True, distribute.InputReplicationMode.PER_WORKER, False, 1)
    for name in ("RunOptions", "InputOptions"):
        fields = {member for member, kind in API[f"tf.distribute.{name}"]["members"].items() if kind == "attribute"}
        assert set(getattr(distribute, name)._fields) == fields


def test_enums_have_the_values_of_tensorflow() -> None:
    assert [(m.name, m.value) for m in distribute.AutoShardPolicy] == [
        ("OFF", -1),
        ("AUTO", 0),
        ("FILE", 1),
        ("DATA", 2),
        ("HINT", 3),
    ]
    location = distribute.cluster_resolver.KubernetesExecutableLocation
    assert [(m.name, m.value) for m in location] == [("WITHIN_CLUSTER", 0), ("OFF_CLUSTER", 1)]
    implementation = distribute.experimental.CommunicationImplementation
    assert distribute.experimental.CollectiveCommunication is implementation
    assert [m.value for m in implementation] == ["AUTO", "RING", "NCCL"]


def test_launch_is_a_function_and_a_package() -> None:
    from stratagem.launch import launch

    assert callable(distribute.launch)
    assert inspect.signature(distribute.launch) == inspect.signature(launch)


def test_the_version_is_that_of_the_project() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{distribute.__version__}"' in project
