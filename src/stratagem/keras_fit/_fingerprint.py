# SPDX-License-Identifier: Apache-2.0
"""Whether processes were given the same arrays, told without sending them."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops, tree

_LOG = logging.getLogger("stratagem")

_WHOLE_HASH_BYTES = 64 * 1024 * 1024


def fingerprint(arrays: Any) -> list[tuple[str, tuple[int, ...], int]]:
    """Tells arrays apart: dtype, shape and a checksum of each in the structure."""
    found = []
    for array in tree.flatten(arrays):
        if array is None:
            continue
        shape = tuple(getattr(array, "shape", ()))
        found.append((str(getattr(array, "dtype", type(array).__name__)), shape, _checksum(array)))
    return found


def warn_of_other_data(rank: int, like_the_chiefs: Sequence[bool]) -> None:
    """Say once, on the chief, that processes were given arrays or batches of their own, which are not used."""
    if rank == 0:
        others = [str(number) for number, alike in enumerate(like_the_chiefs) if not alike]
        _LOG.warning(
            "process %s was given other arrays, or another batch size, than process 0, whose data all train on; give "
            "all the same data, as each takes its own rows of it",
            ", ".join(others),
        )


def _checksum(array: Any) -> int:
    # Tensors of half types and on accelerators are none that numpy takes by itself.
    plain = np.asarray(ops.convert_to_numpy(array) if ops.is_tensor(array) else array)
    if plain.dtype == object or plain.nbytes > _WHOLE_HASH_BYTES:
        # Rows from all over a large array; a shuffled or redrawn one differs in them.
        rows = np.unique(np.linspace(0, len(plain) - 1, 4096).astype(np.int64))
        plain = np.asarray(plain[rows])
    if plain.dtype == object:
        return zlib.crc32(repr(plain.tolist()).encode())
    return zlib.crc32(np.ascontiguousarray(plain).reshape(-1).view(np.uint8).data)
