# SPDX-License-Identifier: Apache-2.0
"""A program: which devices a framework computes on. It alone loads the framework, and keras is left out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import signal
import sys
from typing import Any

__all__ = ["main", "print_answer", "read_request"]

_LIMIT_SECONDS = 120


def main() -> None:
    """Answer a request such as {"backend": "torch"} with the fields of `Seen`."""
    request = read_request()
    print_answer(_torch() if request["backend"] == "torch" else _jax())


def read_request() -> dict[str, Any]:
    """What `Probe` asks; from here on this process has its time."""
    # Its parent ends it long before, unless that was killed itself.
    signal.alarm(_LIMIT_SECONDS)
    return json.load(sys.stdin)


def print_answer(answer: dict[str, Any]) -> None:
    """Write the line that `Probe` reads."""
    sys.stdout.write(json.dumps(answer) + "\n")


def _torch() -> dict[str, Any]:
    import torch

    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    if torch.version.hip:
        built_for = f"ROCm {torch.version.hip}"
    if torch.cuda.is_available():
        names = [f"GPU:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
        return {"devices": names, "platform": "gpu", "built_for": built_for}
    return {"devices": ["CPU:0"], "platform": "cpu", "built_for": built_for}


def _jax() -> dict[str, Any]:
    import jax

    platform = jax.default_backend()
    names = [f"{platform.upper()}:{index} {device.device_kind}" for index, device in enumerate(jax.local_devices())]
    if platform == "cpu":
        names = [name.partition(" ")[0] for name in names]
    return {"devices": names, "platform": platform, "built_for": _jax_plugins()}


def _jax_plugins() -> str:
    """The names of the installed parts that let jax drive more than the CPU."""
    plugins = [
        entry.name for entry in importlib.metadata.entry_points(group="jax_plugins") if not entry.name.startswith("cpu")
    ]
    if importlib.util.find_spec("libtpu"):
        plugins.append("TPU")
    return ", ".join(dict.fromkeys(plugins))


if __name__ == "__main__":
    main()
