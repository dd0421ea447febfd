# SPDX-License-Identifier: Apache-2.0
"""Ways to sum as many float32 as a model has gradients over the processes of a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist

import stratagem
from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.engines.torch._buckets import plan_buckets
from stratagem.engines.torch._engine import TorchEngine

_PARAMETER_NUMEL = 256 * 1024  # of 1 MiB each: a bucket holds some, as in training

# In a process of the job: the reductions, by name and size.
_reductions: dict[tuple[str, int], Callable[[], None]] = {}


def prepare(sizes: list[int]) -> None:
    """Connect, and make every reduction of `sizes` MiB ready and warm."""
    with stratagem.MirroredStrategy().scope():
        pass
    for size in sizes:
        gradients = [torch.ones(_PARAMETER_NUMEL) for _ in range(size)]
        _reductions["gloo", size] = _gloo(size * _PARAMETER_NUMEL)
        _reductions["gloo, apart", size] = _gloo(size * _PARAMETER_NUMEL, apart=True)
        _reductions["in place", size] = _shared(gradients, copies=False)
        _reductions["copied in", size] = _shared(gradients, copies=True)
        _reductions["checked", size] = _checked(size * _PARAMETER_NUMEL)
    for reduce in _reductions.values():
        reduce()


def measure(name: str, size: int) -> float:
    """Seconds of one reduction."""
    start = time.perf_counter()
    _reductions[name, size]()
    return time.perf_counter() - start


def _gloo(numel: int, *, apart: bool = False) -> Callable[[], None]:
    flat = torch.zeros(numel)  # in one piece, which suits gloo best; zeros do not grow when summed again and again

    def reduce() -> None:
        dist.all_reduce(flat.clone() if apart else flat)

    return reduce


def _checked(numel: int) -> Callable[[], None]:
    engine, tensor = select.engine(), torch.zeros(numel)

    def reduce() -> None:
        engine.all_reduce(Reduction.SUM, [[tensor]])

    return reduce


def _shared(gradients: list[torch.Tensor], *, copies: bool) -> Callable[[], None]:
    transport = cast(TorchEngine, select.engine()).transport
    layout = plan_buckets(
        [(torch.float32, tuple(gradient.shape)) for gradient in gradients], {}, transport.bucket_bytes
    )
    channel = transport.bucket_channel(layout)
    members: list[list[int]] = [[] for _ in range(layout.num_buckets)]
    for index, place in enumerate(layout.parameters):
        members[place.bucket].append(index)
    views = [
        channel.local(place.bucket)[place.start : place.start + place.numel].view(place.shape)
        for place in layout.parameters
    ]
    for view in views:
        view.fill_(1.0)

    def reduce() -> None:
        for bucket, indices in enumerate(members):
            if copies:
                torch._foreach_copy_([views[index] for index in indices], [gradients[index] for index in indices])
            channel.post(bucket)
        channel.finish()

    reduce()
    ends = [(channel.total(bucket)[0], channel.total(bucket)[-1]) for bucket in range(layout.num_buckets)]
    assert all(float(end) == transport.world_size for pair in ends for end in pair), "every replica wrote ones"
    return reduce
