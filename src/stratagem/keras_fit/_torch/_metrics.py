# SPDX-License-Identifier: Apache-2.0
"""Metric states that hold the same, exact, global numbers on every replica after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from keras import tree

from stratagem.keras_fit import _step
from stratagem.keras_fit._model import is_sum_over_rows
from stratagem.keras_fit._step import Step
from stratagem.keras_fit._torch._flat import FlatVariables, group_by_dtype


class MetricStates:
    """The states of a model's metrics over one step.

    Most metrics are sums over rows: each replica updates from zero, and what it added travels with the gradients.
    A metric that is not a sum (a user's own class, a function of the whole batch) is updated on every replica
    with the rows of all.

    Args:
        metrics: The model's metrics, without containers.
        loss_trackers: Those of them that follow a loss; a replica's loss is its term of the global loss.
    """

    def __init__(self, metrics: Sequence[Any], loss_trackers: Sequence[Any]) -> None:
        self._whole_batch = [WholeBatchMetric.of(metric) for metric in metrics if not is_sum_over_rows(metric)]
        summed = [variable for metric in metrics if is_sum_over_rows(metric) for variable in metric.variables]
        self._groups = {dtype: FlatVariables(group) for dtype, group in group_by_dtype(summed).items()}
        self._before = {dtype: group.values.clone() for dtype, group in self._groups.items()}
        totals = {id(tracker.total) for tracker in loss_trackers}
        self._tracker_totals = {
            dtype: torch.tensor(
                [
                    start
                    for variable, start in zip(group.variables, group.starts, strict=True)
                    if id(variable) in totals
                ],
                dtype=torch.long,
                device=group.values.device,
            )
            for dtype, group in self._groups.items()
        }

    def holds(self, metrics: Sequence[Any]) -> bool:
        """Whether this still is about these metrics and their variables."""
        summed = [variable for metric in metrics if is_sum_over_rows(metric) for variable in metric.variables]
        groups = group_by_dtype(summed)
        return groups.keys() == self._groups.keys() and all(
            self._groups[dtype].holds(group) for dtype, group in groups.items()
        )

    def extras(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """What travels with the gradients."""
        return {_name(dtype): (dtype, tuple(group.values.shape)) for dtype, group in self._groups.items()}

    def begin(self) -> None:
        """Set the summed states aside and start from zero."""
        for dtype, group in self._groups.items():
            self._before[dtype].copy_(group.values)
            group.values.zero_()

    def contribute(self, step: Step, extra: Callable[[str], torch.Tensor], *, terms: bool) -> None:
        """Write what this replica's rows added.

        Args:
            terms: The loss trackers got terms of the global loss; in a step of the user's own they got means over rows.
        """
        for dtype, group in self._groups.items():
            mine = extra(_name(dtype))
            if not step.counts:
                mine.zero_()
                continue
            totals = self._tracker_totals[dtype]
            if terms and len(totals):
                # A tracker adds loss times rows. The loss is this replica's term of the global one, which counts
                # once for every row of the global batch.
                group.values[totals] /= step.share.fraction
            mine.copy_(group.values)

    def end(self, step: Step, total: Callable[[str], torch.Tensor]) -> None:
        """Add what all replicas' rows added; then update the metrics that need the whole batch."""
        for dtype, group in self._groups.items():
            torch.add(self._before[dtype], total(_name(dtype)), out=group.values)
        for metric in self._whole_batch:
            metric.update(step)


class WholeBatchMetric:
    """Keeps the arguments of a metric's update inside a step, and updates with the rows of all replicas.

    Args:
        metric: Its `update_state` is replaced, for this object only.
    """

    def __init__(self, metric: Any) -> None:
        self._update_state = metric.update_state
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        metric.update_state = self
        metric._stratagem_whole_batch = self

    @classmethod
    def of(cls, metric: Any) -> WholeBatchMetric:
        """The one that `metric` has, or a new one."""
        return getattr(metric, "_stratagem_whole_batch", None) or cls(metric)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _step.current() is None:
            return self._update_state(*args, **kwargs)
        self._calls.append((args, kwargs))
        return None

    def update(self, step: Step) -> None:
        """Run the updates of this step."""
        calls, self._calls = self._calls, []
        with _step.suspended():
            for args, kwargs in calls:
                everything: Any = tree.map_structure(lambda part: _all_rows(step, part), (args, kwargs))
                self._update_state(*everything[0], **everything[1])


def row_mean_update(original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """`Mean.update_state` in a step whose losses don't weigh themselves.

    A scalar is the mean over this replica's rows, so it counts by rows: the replicas' weights add up to the 1 that it
    would have on one device.
    """
    step = _step.current()
    if step is not None and not step.weighs_losses and sample_weight is None and _is_scalar(values):
        sample_weight = step.share.fraction
    return original(metric, values, sample_weight=sample_weight)


def _all_rows(step: Step, part: Any) -> Any:
    if part is None or not isinstance(part, torch.Tensor) or part.ndim == 0:
        return part
    part = part.detach()
    return step.transport.all_gather([part if step.counts else part[:0]], axis=0)[0]


def _is_scalar(values: Any) -> bool:
    return isinstance(values, (int, float)) or (isinstance(values, (torch.Tensor, keras.Variable)) and values.ndim == 0)


def _name(dtype: torch.dtype) -> str:
    return f"metrics {dtype}"
