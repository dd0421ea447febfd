# SPDX-License-Identifier: Apache-2.0
"""Imports point down, stand at the top of a file, and keep to the places made for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

# From the ground up. A package may import itself, and what stands on a lower floor.
FLOORS = (
    ("errors",),
    ("_core",),
    ("checkpoint", "cluster_resolver", "data", "launch"),
    ("engines",),
    ("keras_fit",),
    ("strategies",),
    ("coordinator",),
    ("doctor",),
    ("__main__", "cli", "config", "experimental", "testing", "tpu", ""),  # "" is stratagem/__init__.py itself
)
TOP = len(FLOORS) - 1

FRAMEWORKS = ("torch", "keras", "jax", "flax", "tensorflow", "grain", "datasets", "pyarrow")
FRAMEWORK_FLOORS = (
    "engines.torch",
    "engines.jax",
    "keras_fit",
    "doctor._devices",  # programs, which the doctor starts to load a framework outside of itself
    "doctor._measure",
    "data._hugging_face",  # read when a user gives a data set of that library
    "data._tf_data",
    "data._torch_loader",
)


def test_every_package_has_a_floor(modules: Any) -> None:
    known = {package for floor in FLOORS for package in floor}
    unknown = {package for module in modules if (package := _package(module.name)) not in known}
    assert not unknown, f"give them a place in FLOORS: {sorted(unknown)}"


def test_imports_point_down(modules: Any) -> None:
    upward = [
        f"{module.at(line)} imports {imported}"
        for module in modules
        for line, imported in module.imports()
        if imported.split(".")[0] == "stratagem" and not _may_import(_package(module.name), _target(imported, modules))
    ]
    assert not upward, "\n".join(upward)


def test_no_import_cycle(modules: Any) -> None:
    names = {module.name for module in modules}
    edges = {
        module.name: {found for _, imported in module.imports_when_run() if (found := _longest_prefix(imported, names))}
        - {module.name}
        for module in modules
    }
    done: set[str] = set()
    for name in sorted(names):
        cycle = _cycle_from(name, edges, done, [])
        assert not cycle, " -> ".join(cycle)


def test_first_party_imports_stand_at_the_top(modules: Any) -> None:
    inner = [
        f"{module.at(line)} imports {imported}"
        for module in modules
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for line, imported in module.imports(function)
        if imported.split(".")[0] == "stratagem"
    ]
    assert not inner, "\n".join(inner)


def test_frameworks_are_imported_where_they_belong(modules: Any) -> None:
    astray = [
        f"{module.at(line)} imports {imported}"
        for module in modules
        if not module.name.removeprefix("stratagem.").startswith(FRAMEWORK_FLOORS)
        for line, imported in module.imports()
        if imported.split(".")[0] in FRAMEWORKS
    ]
    assert not astray, "\n".join(astray)


def test_keras_internals_are_touched_in_keras_fit_only(modules: Any) -> None:
    astray = [
        f"{module.at(line)} {text}"
        for module in modules
        if _package(module.name) != "keras_fit"
        for line, text in [*module.imports(), *_strings(module.tree)]
        if text.startswith("keras.src")
    ]
    assert not astray, "\n".join(astray)


def _package(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def _target(imported: str, modules: Any) -> str:
    """The package that `imported` lies in: `stratagem.MirroredStrategy` is in stratagem/__init__.py."""
    package = _package(imported)
    return package if any(_package(module.name) == package for module in modules) else ""


def _may_import(importer: str, imported: str) -> bool:
    floors = {package: number for number, floor in enumerate(FLOORS) for package in floor}
    at, of = floors[importer], floors[imported]
    return importer == imported or of < at or at == of == TOP


def _longest_prefix(imported: str, names: set[str]) -> str | None:
    parts = imported.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in names), None)


def _cycle_from(name: str, edges: dict[str, set[str]], done: set[str], path: list[str]) -> list[str]:
    if name in path:
        return [*path[path.index(name) :], name]
    if name in done:
        return []
    for following in sorted(edges[name]):
        cycle = _cycle_from(following, edges, done, [*path, name])
        if cycle:
            return cycle
    done.add(name)
    return []


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
