# SPDX-License-Identifier: Apache-2.0
"""Sums of gradients, with one replica: what is sent when, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from stratagem.engines.torch._buckets import BucketLayout
from stratagem.engines.torch._gradients import GradientReducer
from stratagem.engines.torch._local import LocalTransport
from stratagem.engines.torch._transport import BucketChannel

pytestmark = pytest.mark.timeout(30)


def parameter(*values: float) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values))


def reducer_of(*parameters: torch.nn.Parameter, bucket_bytes: int = 4 * 1024 * 1024) -> GradientReducer:
    return GradientReducer(LocalTransport(), parameters, {"loss": (torch.float32, (2,))}, bucket_bytes)


def as_lists(gradients: Sequence[torch.Tensor | None]) -> list[list[float] | None]:
    return [None if gradient is None else gradient.tolist() for gradient in gradients]


def test_gradients_come_back_in_the_order_of_the_parameters() -> None:
    first, second = parameter(1.0, 2.0), parameter(3.0)
    reducer = reducer_of(first, second)
    reducer.start()
    ((first * first).sum() + 5 * second.sum()).backward()
    assert as_lists(reducer.finish()) == [[2.0, 4.0], [5.0]]


def test_a_parameter_without_gradient_gives_none_in_that_step_only() -> None:
    used, unused = parameter(1.0), parameter(2.0)
    reducer = reducer_of(used, unused)
    for both in (False, True, False):
        reducer.start()
        (used * 3 + (unused * 7 if both else 0)).sum().backward()
        assert as_lists(reducer.finish()) == [[3.0], [7.0] if both else None]


def test_a_parameter_used_twice_has_the_sum_of_both_uses() -> None:
    shared, other = parameter(2.0), parameter(1.0)
    # One parameter a bucket: it must not be sent after the first of its uses.
    reducer = reducer_of(shared, other, bucket_bytes=1)
    reducer.start()
    (shared * shared * other + 10 * shared).sum().backward()
    assert as_lists(reducer.finish()) == [[14.0], [4.0]]


def test_a_replica_that_does_not_contribute_adds_nothing() -> None:
    weight = parameter(1.0)
    reducer = reducer_of(weight)
    reducer.start()
    (weight * float("nan")).sum().backward()
    assert as_lists(reducer.finish(contributes=False)) == [None]
    reducer.start()
    (weight * 2).sum().backward()
    assert as_lists(reducer.finish()) == [[2.0]]


def test_a_backward_pass_of_a_replica_that_does_not_contribute_sends_nothing_early() -> None:
    transport = _Recording()
    weights = [parameter(float("nan")) for _ in range(3)]
    reducer = GradientReducer(transport, weights, {}, bucket_bytes=1)
    reducer.start(contributes=False)
    torch.stack(list(weights)).sum().backward()
    assert transport.events == []
    assert as_lists(reducer.finish(contributes=False)) == [None] * 3
    assert sorted(transport.events) == [0, 1, 2]


def test_a_frozen_parameter_has_no_gradient_and_a_thawed_one_has() -> None:
    weight, frozen = parameter(1.0), parameter(2.0)
    reducer = reducer_of(weight, frozen)
    for trains in (False, True):
        frozen.requires_grad_(trains)
        reducer.start()
        (weight * frozen).sum().backward()
        assert as_lists(reducer.finish()) == [[2.0], [1.0] if trains else None]


def test_the_gradients_of_the_step_before_do_not_add_up() -> None:
    weight = parameter(1.0)
    reducer = reducer_of(weight)
    for factor in (1.0, 2.0, 3.0):
        reducer.start()
        (weight * factor).sum().backward()
        assert as_lists(reducer.finish()) == [[factor]]


def test_what_rides_along_comes_back_with_the_gradients() -> None:
    weight = parameter(1.0)
    reducer = reducer_of(weight)
    reducer.start()
    reducer.extra("loss").copy_(torch.tensor([1.5, 2.5]))
    weight.sum().backward()
    reducer.finish()
    assert reducer.extra_total("loss").tolist() == [1.5, 2.5]


def test_there_may_be_no_parameters_at_all() -> None:
    reducer = reducer_of()
    reducer.start()
    reducer.extra("loss").fill_(1.0)
    assert reducer.finish() == []
    assert reducer.extra_total("loss").tolist() == [1.0, 1.0]


def test_half_precision_parameters_keep_their_dtype() -> None:
    half, full = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), parameter(1.0)
    reducer = reducer_of(half, full)
    reducer.start()
    (half.float().sum() * 2 + full.sum()).backward()
    first, second = reducer.finish()
    assert first is not None
    assert second is not None
    assert (first.dtype, second.dtype) == (torch.bfloat16, torch.float32)
    assert first.tolist() == [2.0, 2.0]


def test_a_backward_pass_outside_a_step_is_left_alone() -> None:
    weight = parameter(1.0)
    reducer = reducer_of(weight)
    (weight * 2).sum().backward()
    reducer.start()
    (weight * 3).sum().backward()
    assert as_lists(reducer.finish()) == [[3.0]]
    (weight * 4).sum().backward()
    assert weight.grad is not None


class _Recording(LocalTransport):
    """Notes when buckets are sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str | int] = []

    def _bucket_channel(self, layout: BucketLayout) -> BucketChannel:
        channel, events = super()._bucket_channel(layout), self.events
        channel.post = events.append  # pyright: ignore[reportAttributeAccessIssue]
        return channel


def test_full_buckets_leave_while_the_backward_pass_runs_and_each_once() -> None:
    transport = _Recording()
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(4)]
    reducer = GradientReducer(transport, weights, {"loss": (torch.float32, ())}, bucket_bytes=16)
    for _ in range(2):
        transport.events.clear()
        reducer.start()
        value = torch.ones(4)
        for weight in weights:
            value = value * weight
        mark = weights[0].register_hook(lambda _: transport.events.append("first layer"))
        value.sum().backward()
        mark.remove()
        reducer.finish()
        # The last bucket has room for what rides along, so it waits for the end.
        assert transport.events[-1] == 3
        assert transport.events.index("first layer") >= 2
        assert sorted(event for event in transport.events if isinstance(event, int)) == [0, 1, 2, 3]


def test_closing_takes_the_hooks_off_the_parameters() -> None:
    transport = _Recording()
    weight = parameter(1.0)
    reducer = GradientReducer(transport, [weight, parameter(1.0)], {}, bucket_bytes=1)
    reducer.start()
    reducer.close()
    weight.sum().backward()
    assert transport.events == []
