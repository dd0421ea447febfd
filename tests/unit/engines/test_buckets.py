# SPDX-License-Identifier: Apache-2.0
"""Where gradients and what rides with them lie in buckets."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem.engines.torch._buckets import FIRST_BUCKET_BYTES, BucketLayout, Slice, chunk, plan_buckets

pytestmark = pytest.mark.timeout(60)

Spec = tuple[torch.dtype, tuple[int, ...]]

dtypes = st.sampled_from([torch.float32, torch.float16, torch.float64])
shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
specs = st.lists(st.tuples(dtypes, shapes), max_size=25)
extras = st.dictionaries(st.text(max_size=3), st.tuples(dtypes, shapes), max_size=4)
sizes = st.sampled_from([1, 64, 1000, 4 * 1024 * 1024])


def all_places(layout: BucketLayout) -> list[Slice]:
    return [*layout.parameters, *layout.extras.values()]


@given(specs, extras, sizes)
def test_every_number_has_one_place_and_no_place_is_empty(
    parameters: list[Spec], extra: dict[str, Spec], bucket_bytes: int
) -> None:
    layout = plan_buckets(parameters, extra, bucket_bytes)
    taken = [[0] * size for size in layout.sizes]
    for place in all_places(layout):
        for at in range(place.start, place.start + place.numel):
            taken[place.bucket][at] += 1
    assert all(count == 1 for bucket in taken for count in bucket)
    assert layout.num_buckets == len(layout.dtypes) == len(layout.sizes)


@given(specs, extras, sizes)
def test_shapes_and_dtypes_stay_as_they_were(parameters: list[Spec], extra: dict[str, Spec], bucket_bytes: int) -> None:
    layout = plan_buckets(parameters, extra, bucket_bytes)
    assert [(layout.dtypes[place.bucket], place.shape) for place in layout.parameters] == parameters
    assert {name: (layout.dtypes[place.bucket], place.shape) for name, place in layout.extras.items()} == extra


@given(specs, extras, sizes)
def test_extras_lie_in_the_last_bucket_of_their_dtype(
    parameters: list[Spec], extra: dict[str, Spec], bucket_bytes: int
) -> None:
    layout = plan_buckets(parameters, extra, bucket_bytes)
    for name, (dtype, _) in extra.items():
        last = max(bucket for bucket in range(layout.num_buckets) if layout.dtypes[bucket] is dtype)
        assert layout.extras[name].bucket == last


@given(specs, sizes)
def test_buckets_fill_from_the_last_parameter_to_the_first(parameters: list[Spec], bucket_bytes: int) -> None:
    layout = plan_buckets(parameters, {}, bucket_bytes)
    for dtype in {dtype for dtype, _ in parameters}:
        places = [place for place in layout.parameters if layout.dtypes[place.bucket] is dtype]
        order = [(place.bucket, place.start) for place in reversed(places)]
        assert order == sorted(order)


@given(specs, sizes)
def test_a_bucket_is_full_only_if_the_next_gradient_would_not_fit(parameters: list[Spec], bucket_bytes: int) -> None:
    layout = plan_buckets(parameters, {}, bucket_bytes)
    for bucket, (dtype, size) in enumerate(zip(layout.dtypes, layout.sizes, strict=True)):
        members = [place for place in layout.parameters if place.bucket == bucket]
        assert size * dtype.itemsize <= max(bucket_bytes, *(place.numel * dtype.itemsize for place in members))


def test_the_first_bucket_is_small_so_that_it_starts_early() -> None:
    million = (torch.float32, (128, 1024))  # half a megabyte each
    layout = plan_buckets([million] * 20, {})
    assert layout.sizes[0] * 4 == FIRST_BUCKET_BYTES
    assert layout.sizes[1] * 4 == 4 * FIRST_BUCKET_BYTES
    assert {place.bucket for place in layout.parameters[-2:]} == {0}


def test_a_dtype_that_no_parameter_has_gets_a_bucket_of_its_own() -> None:
    layout = plan_buckets([(torch.float32, (2,))], {"rows": (torch.float64, (3,)), "loss": (torch.float32, ())})
    assert layout.dtypes == (torch.float32, torch.float64)
    assert layout.sizes == (3, 3)


def test_a_layout_says_in_few_words_what_is_summed() -> None:
    layout = plan_buckets([(torch.float32, (2, 3)), (torch.float32, (3,))], {"loss": (torch.float32, (2,))})
    assert layout.describe() == "2 gradients of 9 numbers, and loss [2]"
    assert plan_buckets([], {}).describe() == "0 gradients of 0 numbers, and nothing else"


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_chunks_cover_everything_once_and_are_nearly_equal(numel: int, count: int) -> None:
    chunks = [chunk(numel, index, count) for index in range(count)]
    assert chunks[0][0] == 0
    assert chunks[-1][1] == numel
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(chunks))
    lengths = [end - start for start, end in chunks]
    assert sorted(lengths, reverse=True) == lengths
    assert max(lengths) == -(-numel // count)
