# SPDX-License-Identifier: Apache-2.0
"""What XLA's texts say: the collectives of a compiled program, and by how much one does not fit."""

from __future__ import annotations

import math
import re
from collections import Counter

from stratagem.engines.compiled_step import Collective

__all__ = ["collectives", "out_of_memory"]

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "ragged-all-to-all",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# `%name = shape kind(operands)`. Of an asynchronous pair the half that ends has the result's shape alone.
_INSTRUCTION = re.compile(rf"^\s*(?:ROOT )?%?\S+ = (?P<shape>.+?) (?P<kind>{'|'.join(_KINDS)})(?:-done)?\(")
_ARRAY = re.compile(r"\b(?P<dtype>pred|bf16|[suf]\d+\w*|c\d+)\[(?P<sizes>[\d,<=]*)\]")
_BITS = re.compile(r"\d+")

_SIZE = r"(?P<{}>[\d.]+)(?P<{}_unit>[KMGT]?)B?"
_OUT_OF_MEMORY = (
    re.compile(rf"\({_SIZE.format('needed', 'needed')}\) exceeds available HBM \({_SIZE.format('there', 'there')}\)"),
    re.compile(rf"Used {_SIZE.format('needed', 'needed')} of {_SIZE.format('there', 'there')} hbm"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def collectives(text: str) -> tuple[Collective, ...]:
    """The collectives of a program, by kind, the one with the most bytes first.

    One inside a loop counts once.

    Args:
        text: The compiled program's HLO.

    >>> collectives("%r = (f32[]{:T(128)}, f32[4,8]{1,0:T(8,128)}) all-reduce(%a, %b), channel_id=1")
    (Collective(kind='all-reduce', count=1, num_bytes=132),)
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for line in text.splitlines():
        found = _INSTRUCTION.match(line)
        if found is not None:
            counts[found["kind"]] += 1
            sizes[found["kind"]] += _num_bytes(found["shape"])
    ordered = sorted(counts, key=lambda kind: (-sizes[kind], kind))
    return tuple(Collective(kind=kind, count=counts[kind], num_bytes=sizes[kind]) for kind in ordered)


def out_of_memory(message: str) -> tuple[int, int] | None:
    """The bytes that a program needs and those that there are, out of the compiler's error; None if it is another.

    >>> out_of_memory("the total memory required for HLO temporaries (20.00G) exceeds available HBM (15.75G).")
    (21474836480, 16911433728)
    """
    for pattern in _OUT_OF_MEMORY:
        found = pattern.search(message)
        if found is not None:
            needed, there = (int(float(found[name]) * _UNITS[found[f"{name}_unit"]]) for name in ("needed", "there"))
            return needed, there
    return None


def _num_bytes(shape: str) -> int:
    total_bits = 0
    for array in _ARRAY.finditer(shape):
        bits = 8 if array["dtype"] == "pred" else int(_first_number(array["dtype"]))
        # "<=8" is a dimension of at most 8.
        total_bits += bits * math.prod(int(size.removeprefix("<=")) for size in array["sizes"].split(",") if size)
    return math.ceil(total_bits / 8)


def _first_number(dtype: str) -> str:
    # f8e4m3fn has 8 bits.
    found = _BITS.search(dtype)
    assert found is not None, "the pattern asks for a number"
    return found[0]
