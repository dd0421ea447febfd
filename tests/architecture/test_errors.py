# SPDX-License-Identifier: Apache-2.0
"""Errors cross processes, have two parts, and their tree is drawn as it is."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from stratagem import errors

CLASSES = tuple(getattr(errors, name) for name in errors.__all__)


def test_all_names_every_error() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert sorted(errors.__all__) == sorted(defined)


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_crosses_processes_unchanged(error: type[errors.StratagemError]) -> None:
    original = error("2 devices were asked for", fix="devices=['CPU:0']")
    for _ in range(2):  # twice, since a text built in __init__ would grow with each crossing
        copy = pickle.loads(pickle.dumps(original))
        assert type(copy) is error
        assert copy.args == original.args
        assert str(copy) == str(original) == "2 devices were asked for\n  fix: devices=['CPU:0']"
        original = copy


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    rows = [
        match for line in errors.__doc__.splitlines() if (match := re.match(r"( *)(\w+Error)(?: \((\w+)\))?", line))
    ]
    drawn: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for row in rows:
        indent, name, builtin = row.groups()
        del above[len(indent) // 4 :]
        drawn[name] = tuple(filter(None, (above[-1] if above else "Exception", builtin)))
        above.append(name)
    actual = {error.__name__: tuple(base.__name__ for base in error.__bases__) for error in CLASSES}
    assert drawn == actual
