# SPDX-License-Identifier: Apache-2.0
"""What every file keeps to: size, heading, characters, where it prints and where it reads the environment."""

from __future__ import annotations

import ast
import datetime
import io
import re
import subprocess
import tokenize
import tomllib
from pathlib import Path
from typing import Any

MAX_LINES = 600
MAY_TOUCH_THE_ENVIRONMENT = (
    "stratagem._core.env",  # reads it
    "stratagem.launch",  # writes what it starts processes with
)
KEPT_AS_FOUND = ("tests/integration/scripts", "tests/golden")  # programs of users, and recordings


def test_no_file_is_long(root: Path) -> None:
    long = [
        f"{path}: {count} lines" for path in _python_files(root) if (count := len(_lines(root / path))) >= MAX_LINES
    ]
    assert not long, "\n".join(long)


def test_every_source_file_has_its_heading(modules: Any) -> None:
    without = [
        str(module.path)
        for module in modules
        if not module.text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
        or not ast.get_docstring(module.tree)
        or (_has_code(module.tree) and "from __future__ import annotations\n" not in module.text)
    ]
    assert not without, f"SPDX line, docstring or __future__ import missing: {without}"


def test_text_is_ascii(root: Path) -> None:
    astray = [
        f"{path}:{number}"
        for path in [*_python_files(root), *_markdown_files(root)]
        for number, line in enumerate(_lines(root / path), start=1)
        if not line.isascii()
    ]
    assert not astray, "\n".join(astray)


def test_only_cli_and_launch_print(modules: Any) -> None:
    prints = [
        module.at(node.lineno)
        for module in modules
        if not module.name.startswith(("stratagem.cli", "stratagem.launch"))
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, "\n".join(prints)


def test_the_environment_is_read_and_written_in_few_places(modules: Any) -> None:
    names = {"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"}
    astray = [
        f"{module.at(line)} {text}"
        for module in modules
        if not module.name.startswith(MAY_TOUCH_THE_ENVIRONMENT)
        for line, text in [*module.attributes(), *module.imports()]
        if text in names
    ]
    assert not astray, "\n".join(astray)


def test_the_reader_of_the_environment_does_not_write_it(modules: Any) -> None:
    (env,) = (module for module in modules if module.name == "stratagem._core.env")
    writes = re.findall(
        r"os\.environ\[[^]]+\]\s*=[^=]|os\.(?:putenv|unsetenv)|environ\.(?:update|pop|setdefault)", env.text
    )
    assert not writes


def test_a_todo_names_an_issue(root: Path) -> None:
    bare = [
        f"{path}:{token.start[0]}"
        for path in _python_files(root)
        for token in tokenize.generate_tokens(io.StringIO((root / path).read_text()).readline)
        if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\):)", token.string)
    ]
    assert not bare, "\n".join(bare)


def test_exempt_warnings_have_an_end_date(root: Path) -> None:
    text = (root / "pyproject.toml").read_text()
    exempt = [
        entry for entry in tomllib.loads(text)["tool"]["pytest"]["ini_options"]["filterwarnings"] if entry != "error"
    ]
    dates = [datetime.date.fromisoformat(date) for date in re.findall(r'"ignore:.*#.*until (\d{4}-\d\d-\d\d)', text)]
    assert len(dates) == len(exempt), "each exempt warning is followed by a comment: reason, until YYYY-MM-DD"
    assert all(date > datetime.date.today() for date in dates), "look again whether it is still needed"


def _has_code(tree: ast.Module) -> bool:
    return len(tree.body) > 1


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _python_files(root: Path) -> list[str]:
    return _files(root, "*.py")


def _markdown_files(root: Path) -> list[str]:
    return _files(root, "*.md")


def _files(root: Path, pattern: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return [path for path in listed if not path.startswith(KEPT_AS_FOUND) and (root / path).exists()]
