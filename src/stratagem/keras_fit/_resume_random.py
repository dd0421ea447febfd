# SPDX-License-Identifier: Apache-2.0
"""The random states of Python and numpy as arrays, to be kept in a file."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

__all__ = ["RandomStates", "put", "take"]

RandomStates = Mapping[str, np.ndarray]


def take() -> dict[str, np.ndarray]:
    """This process's."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    assert (version, kind) == (3, "MT19937"), "neither can be changed from outside"
    return {
        "python": np.asarray(words, np.uint32),
        "python_gauss": np.asarray([] if gauss is None else [gauss], np.float64),
        "numpy": np.array(keys, np.uint32),
        "numpy_place": np.asarray([place, has_gauss], np.int64),
        "numpy_gauss": np.asarray([cached], np.float64),
    }


def put(states: RandomStates) -> None:
    """Go on with `states`, which `take` returned in this process or another."""
    gauss = states["python_gauss"].tolist()
    random.setstate((3, tuple(states["python"].tolist()), gauss[0] if gauss else None))
    place, has_gauss = states["numpy_place"].tolist()
    np.random.set_state(("MT19937", states["numpy"], place, has_gauss, float(states["numpy_gauss"][0])))
