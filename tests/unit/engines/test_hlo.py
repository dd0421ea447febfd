# SPDX-License-Identifier: Apache-2.0
"""What is read out of XLA's texts, recorded from compilations for TPUs."""

from __future__ import annotations

import pytest

from stratagem.engines._hlo import collectives, out_of_memory
from stratagem.engines.compiled_step import Collective

# Of a dense model on v5e:2x4, shortened at the end of the lines.
ALL_REDUCE = """\
  %div.3 = f32[]{:T(128)} divide(%reduce, %constant.1)
  %all-reduce = (f32[]{:T(128)}, f32[1024,1024]{1,0:T(8,128)S(1)}, bf16[8]{0:T(8)(2,1)}) all-reduce(%a, %b, %c)
  %get-tuple-element.14 = f32[]{:T(128)} get-tuple-element(%all-reduce), index=0, metadata={op_name="jit(step)/psum"}
  ROOT %tuple = (f32[]{:T(128)}, f32[1024,1024]{1,0:T(8,128)}) tuple(%get-tuple-element.14, %all-reduce)
"""
ASYNC = """\
  %all-gather-start = (f32[4]{0}, f32[32]{0}) all-gather-start(%p), channel_id=2, dimensions={0}
  %all-gather-done = f32[32]{0} all-gather-done(%all-gather-start)
  %cp = (u32[2]{0}, u32[2]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%q), source_target_pairs={{0,1}}
  ROOT %cpd = u32[2]{0} collective-permute-done(%cp)
"""


def test_an_all_reduce_of_several_arrays_is_one_collective_with_all_their_bytes() -> None:
    assert collectives(ALL_REDUCE) == (Collective(kind="all-reduce", count=1, num_bytes=4 + 4 * 1024**2 + 16),)


def test_an_asynchronous_pair_is_one_collective_of_the_size_of_its_result() -> None:
    assert collectives(ASYNC) == (
        Collective(kind="all-gather", count=1, num_bytes=128),
        Collective(kind="collective-permute", count=1, num_bytes=8),
    )


def test_kinds_are_told_apart_and_the_largest_comes_first() -> None:
    text = """
      %a = f32[2]{0} all-reduce(%x), to_apply=%add
      %b = f32[2]{0} all-reduce(%y), to_apply=%add
      %c = s8[3,5]{1,0} reduce-scatter(%z), dimensions={0}
      %d = pred[7]{0} all-to-all(%z), dimensions={0}
      %e = f8e4m3fn[100]{0} ragged-all-to-all(%z), replica_groups={}
    """
    found = [(c.kind, c.count, c.num_bytes) for c in collectives(text)]
    assert found == [
        ("ragged-all-to-all", 1, 100),
        ("all-reduce", 2, 16),
        ("reduce-scatter", 1, 15),
        ("all-to-all", 1, 7),
    ]


@pytest.mark.parametrize(
    ("dtype", "num_bytes"),
    [("pred", 8), ("s4", 4), ("u8", 8), ("bf16", 16), ("f16", 16), ("s64", 64), ("c64", 64), ("f8e5m2", 8)],
)
def test_sizes_are_those_of_the_dtype(dtype: str, num_bytes: int) -> None:
    (found,) = collectives(f"  %r = {dtype}[2,4]{{1,0}} all-reduce(%x), to_apply=%add")
    assert found.num_bytes == num_bytes


def test_a_program_without_collectives_has_none() -> None:
    assert collectives("  %r = f32[2]{0} add(%all-reduce.1, %b)\n") == ()


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        (
            "the total memory required for HLO temporaries (20.00G) exceeds available HBM (15.75G).",
            (20 * 2**30, 63 * 2**28),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 512.00M of 0.25G hbm. Exceeded",
            (2**29, 2**28),
        ),
        ("INTERNAL: something else of 20.00G", None),
    ],
)
def test_the_compilers_error_says_how_much_is_needed_and_there(message: str, sizes: tuple[int, int] | None) -> None:
    assert out_of_memory(message) == sizes
