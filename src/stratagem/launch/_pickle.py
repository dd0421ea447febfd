# SPDX-License-Identifier: Apache-2.0
"""cloudpickle, which also sends lambdas, closures and what a notebook defines, with types."""

from __future__ import annotations

from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]


def dumps(value: object) -> bytes:
    """Pickle `value`."""
    return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]


def loads(data: bytes) -> Any:
    """What `dumps` pickled."""
    return cloudpickle.loads(data)
