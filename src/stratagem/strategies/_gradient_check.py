# SPDX-License-Identifier: Apache-2.0
"""Whether a step function's gradients on several replicas are those of one device, and if not, what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stratagem import keras_fit
from stratagem._core import nest, recorder
from stratagem.data._spec import num_rows, rows_of
from stratagem.data._split import share_of
from stratagem.engines.base import Engine
from stratagem.errors import ArgumentError

if TYPE_CHECKING:
    from stratagem.strategies._strategy import Strategy

__all__ = ["GradientReport", "compared", "gradients_of", "gradients_of_all"]

_ROUNDING = 1e-3  # of the largest gradient of a variable
_SAME_FACTOR = 0.01


@dataclass(frozen=True)
class GradientReport:
    """What `strategy.check_gradients` found; `str` says it.

    Attributes:
        ok: The gradients on all replicas together are those of one device, up to rounding.
        num_replicas: How many replicas there are.
        verdict: One sentence.
        fix: What to do; "" if there is nothing.
        factors: By variable, how many times as large its gradient is as on one device.
    """

    ok: bool
    num_replicas: int
    verdict: str
    fix: str = ""
    factors: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.verdict}\n  fix: {self.fix}" if self.fix else self.verdict


def gradients_of(engine: Engine, step_fn: Callable[..., Any], batch: Sequence[Any]) -> recorder.Recorded:
    """What the function applies when it is called here with the whole batch, as arrays.

    Raises:
        ArgumentError: it applies nothing.
    """
    given = nest.map_structure(lambda leaf: engine.to_tensor(leaf) if hasattr(leaf, "ndim") else leaf, list(batch))
    with recorder.recording() as recorded:
        step_fn(*given)
    if not recorded.gradients:
        raise ArgumentError(
            "the function applied no gradients with a Keras optimizer, so there is nothing to compare",
            fix="call optimizer.apply(gradients, variables) in it",
        )
    recorded.gradients = keras_fit.as_arrays(recorded.gradients)
    return recorded


def gradients_of_all(strategy: Strategy, step_fn: Callable[..., Any], batch: Sequence[Any]) -> list[np.ndarray | None]:
    """What the function applies on every replica when each has its rows of the batch, as arrays.

    Raises:
        ArgumentError: replicas would have different numbers of rows, where one function is traced for all.
    """
    replicas, rows = strategy.num_replicas_in_sync, num_rows(list(batch)) or 0
    if rows % replicas and strategy.extended.engine.capabilities.traced_functions:
        raise ArgumentError(
            f"{rows} rows do not divide evenly among {replicas} replicas",
            fix=f"give a batch of {rows // replicas * replicas or replicas} rows",
        )

    def part(leaf: Any) -> Any:
        def of(context: Any) -> Any:
            share = share_of(context.replica_id_in_sync_group, replicas, rows)
            return strategy.extended.engine.to_tensor(rows_of(leaf, share.start, share.stop))

        return strategy.experimental_distribute_values_from_function(of) if hasattr(leaf, "ndim") else leaf

    def recorded(*args: Any) -> list[Any]:
        with recorder.recording() as found:
            step_fn(*args)
        return found.gradients

    gradients = strategy.run(recorded, args=tuple(nest.map_structure(part, list(batch))))
    return keras_fit.as_arrays(
        [None if one is None else strategy.experimental_local_results(one)[0] for one in gradients]
    )


def compared(
    names: Sequence[str],
    one: Sequence[np.ndarray | None],
    several: Sequence[np.ndarray | None],
    num_replicas: int,
    *,
    sums_by_hand: bool,
) -> GradientReport:
    """The report on the gradients of one device and those of several replicas.

    Args:
        names: The variables'.
        one: Of the whole batch on one device.
        several: Summed over replicas, each with its rows of the batch.
        num_replicas: How many.
        sums_by_hand: Whether the step function reduces something over replicas itself.
    """
    found = {
        name: (mine, theirs)
        for name, mine, theirs in zip(names, one, several, strict=True)
        if mine is not None and theirs is not None and np.abs(mine).max(initial=0.0) > 0
    }
    factors = {name: float((mine * theirs).sum() / (mine * mine).sum()) for name, (mine, theirs) in found.items()}

    def fits(factor_of: dict[str, float]) -> bool:
        return all(
            np.abs(theirs - factor_of[name] * mine).max() <= _ROUNDING * max(np.abs(mine).max(), np.abs(theirs).max())
            for name, (mine, theirs) in found.items()
        )

    if fits(dict.fromkeys(found, 1.0)):
        verdict = f"the gradients on {num_replicas} replicas are those of one device"
        return GradientReport(True, num_replicas, verdict, "", factors)
    common = float(np.median(list(factors.values())))
    if fits(factors) and all(abs(factor - common) <= _SAME_FACTOR * abs(common) for factor in factors.values()):
        verdict, fix = _of_factor(common, num_replicas, sums_by_hand)
        return GradientReport(False, num_replicas, verdict, fix, factors)
    verdict = "a part of your loss counts once for each replica, and another once in all"
    fix = "divide what does not depend on rows, such as penalties on variables: scale_regularization_loss(penalty)"
    return GradientReport(False, num_replicas, verdict, fix, factors)


def _of_factor(factor: float, num_replicas: int, sums_by_hand: bool) -> tuple[str, str]:
    if abs(factor - num_replicas) <= _SAME_FACTOR * num_replicas:
        if sums_by_hand:
            return (
                f"your gradients are {num_replicas} times too large: they are summed over replicas twice",
                "leave out your all_reduce, as optimizer.apply sums them",
            )
        return (
            f"your loss is {num_replicas} times too large: each replica's is the mean over its own rows",
            "divide by the global batch size: compute_average_loss(losses, global_batch_size=...)",
        )
    if abs(factor * num_replicas - 1) <= _SAME_FACTOR:
        return (
            f"your loss is {num_replicas} times too small: it is divided by the number of replicas as well",
            "divide by the global batch size alone: compute_average_loss(losses, global_batch_size=...)",
        )
    return (
        f"your gradients are {factor:.3g} times those of one device",
        "let the sum over replicas of the loss be that of the global batch: compute_average_loss(losses, ...)",
    )
