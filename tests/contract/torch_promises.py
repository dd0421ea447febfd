# SPDX-License-Identifier: Apache-2.0
"""What the torch engine promises beyond numpy's reach: bfloat16, and gradients through collectives."""

from __future__ import annotations

from stratagem._core.enums import Reduction
from stratagem.engines.base import Engine
from tests.contract.promises import Promise

TORCH_PROMISES: dict[str, Promise] = {}


def promise(function: Promise) -> Promise:
    """Enter a promise into the table under its name."""
    TORCH_PROMISES[function.__name__] = function
    return function


@promise
def half_types_are_summed_in_float32_and_keep_their_dtype(engine: Engine) -> None:
    import torch

    for dtype, small in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        # In the type itself each addition of `small` to 1 would be lost.
        mine = torch.tensor([1.0 if engine.rank == 0 else small, 3.0], dtype=dtype)
        total, mean, low, high = (engine.all_reduce(op, [[mine]])[0][0] for op in Reduction)
        assert {total.dtype, mean.dtype, low.dtype, high.dtype} == {dtype}
        others = engine.num_replicas - 1
        exact = torch.tensor([1.0 + others * small, 3.0 * engine.num_replicas])
        assert torch.equal(total, exact.to(dtype))
        assert torch.equal(mean, (exact / engine.num_replicas).to(dtype))
        assert low[0] == (small if others else 1.0)
        assert high[0] == 1.0
    gathered = engine.all_gather([[torch.ones(engine.rank, dtype=torch.bfloat16)]], axis=0)[0][0]
    assert (gathered.dtype, len(gathered)) == (torch.bfloat16, sum(range(engine.num_replicas)))


@promise
def gradients_of_sum_and_mean_are_reduced_likewise(engine: Engine) -> None:
    import torch

    count = engine.num_replicas
    for op, factor in ((Reduction.SUM, 1.0), (Reduction.MEAN, 1.0 / count)):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        unused = torch.ones(3, requires_grad=True)
        y, _ = engine.all_reduce(op, [[x * (engine.rank + 1), unused]])[0]
        (y * (engine.rank + 2)).sum().backward()
        # The sum of the replicas' losses, by this replica's x.
        upstream = sum(rank + 2 for rank in range(count)) * factor
        assert x.grad is not None
        torch.testing.assert_close(x.grad, torch.full((2,), upstream * (engine.rank + 1)))


@promise
def the_gradient_of_a_gather_is_this_replicas_part(engine: Engine) -> None:
    import torch

    rows = engine.rank + 1
    for axis in (0, -1):
        x = torch.ones((rows, 2) if axis == 0 else (2, rows), requires_grad=True)
        whole = engine.all_gather([[x]], axis=axis)[0][0]
        weights = torch.arange(float(whole.numel())).reshape(whole.shape)
        (whole * weights * (engine.rank + 1)).sum().backward()
        start = sum(rank + 1 for rank in range(engine.rank))
        factor = sum(rank + 1 for rank in range(engine.num_replicas))
        assert x.grad is not None
        torch.testing.assert_close(x.grad, weights.narrow(axis, start, rows) * factor)


@promise
def no_gradient_passes_where_none_is_asked_for(engine: Engine) -> None:
    import torch

    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert not engine.all_reduce(Reduction.SUM, [[x]])[0][0].requires_grad
    assert not engine.all_reduce(Reduction.MAX, [[x]])[0][0].requires_grad
    assert not engine.broadcast([[x]])[0][0].requires_grad


@promise
def value_and_grad_goes_through_collectives_and_skips_what_is_unused(engine: Engine) -> None:
    import keras

    x, unused = keras.Variable([1.0, 2.0]), keras.Variable([5.0])
    function = engine.value_and_grad(
        lambda: engine.all_reduce(Reduction.MEAN, [[(x.value * x.value).sum()]])[0][0], [x, unused]
    )
    value, (gradient, none) = function()
    assert float(value) == 5.0
    assert gradient is not None
    assert gradient.tolist() == [2.0, 4.0]
    assert none is None


@promise
def a_variable_is_a_tensor_to_the_engine(engine: Engine) -> None:
    import keras
    import torch

    x = keras.Variable([1.0, 2.0])
    assert engine.is_tensor(x)
    assert isinstance(engine.to_tensor(x), torch.Tensor)
