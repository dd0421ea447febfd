# SPDX-License-Identifier: Apache-2.0
"""Answers as custom.json writes them: made out of values, joined over processes, and read from the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._core import contexts, values
from stratagem.engines import select

__all__ = ["Records", "joined", "leaves", "record"]

Records = dict[str, Any]


def record(thunk: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"ok": _plain(thunk())}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return {"error": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}
    finally:
        contexts._stack.entries.clear()
        contexts._stack.base = None


def _joined(records: Sequence[Any]) -> Any:
    failed = [record for record in records if "error" in record]
    return failed[0] if failed else {"ok": _joined_values([record["ok"] for record in records])}


def _joined_values(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict) and "values" in first:
        return {"type": first["type"], "values": [value for part in parts for value in part["values"]]}
    if isinstance(first, dict):
        return {key: _joined_values([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [_joined_values(each) for each in zip(*parts, strict=True)]
    assert all(repr(part) == repr(first) for part in parts), parts  # as text, for the sake of NaN
    return first


def joined(parts: Sequence[Records]) -> Records:
    """The records of all processes as one."""
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _plain(value: Any) -> Any:
    """A value as JSON has it, in the way custom.json writes it."""
    if isinstance(value, np.ndarray | np.generic):
        return {"tensor": np.asarray(value).tolist(), "dtype": str(value.dtype)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, values.DistributedValues):
        return {"type": type(value).__name__, "values": [_plain(one) for one in value.values]}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(one) for one in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if hasattr(value, "assign"):
        return {"type": "Variable", "value": _plain(select.engine().to_tensor(value))}
    if select.engine().is_tensor(value):
        if hasattr(value, "detach"):  # torch's
            value = value.detach().cpu()
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    return {"type": type(value).__name__}


def leaves(golden: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A section of custom.json as {path: record}."""
    found: dict[str, Any] = {}
    for name, value in golden.items():
        if isinstance(value, dict) and not {"ok", "error_type"} & set(value) and "has_strategy" not in value:
            found |= leaves(value, f"{prefix}{name}/")
        else:
            found[prefix + name] = (
                value if isinstance(value, dict) and {"ok", "error_type"} & set(value) else {"ok": value}
            )
    return found
