# SPDX-License-Identifier: Apache-2.0
"""What is said of a compiled step."""

from __future__ import annotations

import dataclasses
import json

import pytest

from stratagem.engines.compiled_step import Collective, CompiledStep, Memory, readable, refusal_to_json
from stratagem.errors import ArgumentError

GIB = 2**30
MEMORY = Memory(arguments=3 * GIB, outputs=2 * GIB, aliased=2 * GIB, temporaries=GIB, code=0)
STEP = CompiledStep(
    topology="v5e:2x4",
    num_devices=8,
    device_noun="chip",
    global_batch=256,
    lower_seconds=0.5,
    compile_seconds=12.25,
    hbm_bytes=16 * GIB,
    needed_bytes=MEMORY.total,
    memory=MEMORY,
    collectives=(Collective(kind="all-reduce", count=2, num_bytes=3 * 2**20),),
)
TOO_LARGE = dataclasses.replace(STEP, needed_bytes=20 * GIB, memory=None, collectives=())


def test_what_lies_where_arguments_lay_counts_once() -> None:
    assert MEMORY.total == 4 * GIB


def test_a_summary_has_time_collectives_and_memory() -> None:
    assert str(STEP) == (
        "v5e:2x4: 8 chips, a global batch of 256: 32 rows a chip\n"
        "compiled in 12.2 s, after 0.5 s of tracing and lowering\n"
        "collectives of one step:\n"
        "  all-reduce             2 x      3.0 MiB in all\n"
        "memory of a chip:\n"
        "  arguments         3.0 GiB  the state and the rows of the batch\n"
        "  outputs           2.0 GiB  2.0 GiB of them lie where arguments lay\n"
        "  temporaries       1.0 GiB  activations and gradients\n"
        "  program               0 B\n"
        "it fits: a chip needs 4.0 GiB and has 16.0 GiB"
    )


def test_a_summary_says_by_how_much_a_step_does_not_fit() -> None:
    assert not TOO_LARGE.fits
    assert str(TOO_LARGE).endswith("\nit does not fit: a chip needs 20.0 GiB and has 16.0 GiB, 4.0 GiB too little")
    assert "collectives" not in str(TOO_LARGE)


def test_one_device_exchanges_nothing() -> None:
    assert "\nno collectives\n" in str(dataclasses.replace(STEP, collectives=()))


@pytest.mark.parametrize("step", [STEP, TOO_LARGE])
def test_json_holds_all_of_it_and_whether_it_fits(step: CompiledStep) -> None:
    text = step.to_json()
    assert CompiledStep.from_json(text) == step
    assert json.loads(text)["fits"] is step.fits
    assert json.loads(text)["excess_bytes"] == step.excess_bytes


def test_a_refusal_comes_back_as_the_error_it_was() -> None:
    error = ArgumentError("100 rows can't be divided", fix="use 96")
    with pytest.raises(ArgumentError) as raised:
        CompiledStep.from_json(refusal_to_json(error))
    assert raised.value.args == error.args


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (GIB, "1.0 GiB"), (2**52, "4096.0 TiB")]
)
def test_sizes_are_written_in_the_unit_that_suits_them(num_bytes: int, text: str) -> None:
    assert readable(num_bytes) == text
