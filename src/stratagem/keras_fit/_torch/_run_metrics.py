# SPDX-License-Identifier: Apache-2.0
"""Metrics that a step function updates in `strategy.run`: asked outside of it, they count the rows of all replicas.

As in TensorFlow they add up each on their own, and are summed when somebody asks. All processes ask together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

import torch

from stratagem._core import contexts
from stratagem._core.enums import Reduction
from stratagem.engines import select
from stratagem.engines.torch._engine import TorchEngine
from stratagem.engines.torch._transport import Transport
from stratagem.keras_fit import _step

_known: weakref.WeakSet[_RunMetric] = weakref.WeakSet()


def init_metric(original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> None:
    """`Metric.__init__`: one that is made in the scope of several replicas sums itself over them when it is asked."""
    original(metric, *args, **kwargs)
    context = contexts.current()
    if context is not None and context.is_cross_replica and context.strategy.num_replicas_in_sync > 1:
        _known.add(_RunMetric(metric))
        _transport().before_run = _begin


def _begin() -> None:
    for metric in _known:
        metric.begin()


class _RunMetric:
    """What a metric's variables held when all replicas last agreed on them.

    Args:
        metric: Its `result` and `reset_state` are replaced, for this object only.
    """

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._result = metric.result
        self._reset_state = metric.reset_state
        self._agreed: list[torch.Tensor] | None = None
        metric.result = self.result
        metric.reset_state = self.reset_state

    def begin(self) -> None:
        """A call of `run` begins, in which replicas may add different things."""
        if self._agreed is None:
            self._agreed = self._values()

    def result(self, *args: Any, **kwargs: Any) -> Any:
        """`Metric.result`; outside of replicas that of all."""
        if self._agreed is not None and _is_outside():
            self._sum(self._agreed)
        return self._result(*args, **kwargs)

    def reset_state(self) -> None:
        """`Metric.reset_state`."""
        self._reset_state()
        if self._agreed is not None:
            self._agreed = None if _is_outside() else self._values()

    def _values(self) -> list[torch.Tensor]:
        return [variable.value.detach().clone() for variable in self._metric.variables]

    def _sum(self, agreed: list[torch.Tensor]) -> None:
        self._agreed = None
        values = self._values()
        # A variable that was made in the meantime began at zero.
        agreed = agreed + [torch.zeros_like(value) for value in values[len(agreed) :]]
        added = [value - before for value, before in zip(values, agreed, strict=True)]
        totals = _transport().all_reduce(Reduction.SUM, added)
        for variable, before, total in zip(self._metric.variables, agreed, totals, strict=True):
            variable.assign(before + total)


def _is_outside() -> bool:
    context = contexts.current()
    return (context is None or context.is_cross_replica) and _step.current() is None


def _transport() -> Transport:
    return cast(TorchEngine, select.engine()).transport
