# SPDX-License-Identifier: Apache-2.0
"""The source files, parsed once, for the tests that read them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"


@dataclass(frozen=True, kw_only=True)
class Module:
    """One file of src/stratagem.

    Attributes:
        path: The file.
        name: Its dotted name, such as "stratagem.engines.torch".
        tree: What it parses to.
        text: What it says.
    """

    path: Path
    name: str
    tree: ast.Module
    text: str

    def imports(self, tree: ast.AST | None = None) -> Iterator[tuple[int, str]]:
        """The line and dotted name of each module that is imported, `from package import module` included."""
        yield from self._imports(ast.walk(self.tree if tree is None else tree))

    def imports_when_run(self) -> Iterator[tuple[int, str]]:
        """The same without what only type checkers import."""
        only_types = {
            inner
            for node in ast.walk(self.tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for statement in node.body
            for inner in ast.walk(statement)
        }
        yield from self._imports(node for node in ast.walk(self.tree) if node not in only_types)

    def _imports(self, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)

    def attributes(self) -> Iterator[tuple[int, str]]:
        """The line and dotted text of each attribute that is read or written, such as "os.environ"."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield node.lineno, f"{node.value.id}.{node.attr}"

    def at(self, line: int) -> str:
        """`line` of this file as an editor takes it."""
        return f"{self.path.relative_to(ROOT)}:{line}"

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def modules() -> tuple[Module, ...]:
    return tuple(_parse(path) for path in sorted((SOURCES / "stratagem").rglob("*.py")))


def _parse(path: Path) -> Module:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    text = path.read_text()
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(path=path, name=name, tree=ast.parse(text), text=text)
