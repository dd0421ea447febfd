# SPDX-License-Identifier: Apache-2.0
"""Loading libtpu, which jax does when it starts and the package is there, on machines without a TPU."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from stratagem import launch
from stratagem._core import env
from stratagem.cluster_resolver._tpu_hardware import NO_TPU_HERE, look

__all__ = ["may_load"]


@contextlib.contextmanager
def may_load() -> Generator[None]:
    """Let libtpu be loaded inside the block; where there is no TPU, it neither complains nor keeps others out."""
    with contextlib.ExitStack() as stack:
        if not look(env.inherited()).num_chips:
            for name, value in NO_TPU_HERE.items():
                stack.enter_context(launch.variable_unless_set(name, value))
        yield
