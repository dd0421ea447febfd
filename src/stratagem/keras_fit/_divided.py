# SPDX-License-Identifier: Apache-2.0
"""A `DistributedDataset` given to `fit`, `evaluate` or `predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
from keras.utils import unpack_x_y_sample_weight

from stratagem.data._feeds import BatchParts, Divided, Parts
from stratagem.data._prefetch import Ahead
from stratagem.errors import ArgumentError, ContextError

_AHEAD = 2


class DividedData(DataAdapter):
    """What Keras's loops take for their data.

    Args:
        dataset: Divided among the replicas of the model's strategy.
        class_weight: By class, as `fit` takes it.
    """

    def __init__(self, dataset: Divided, class_weight: Mapping[int, float] | None) -> None:
        self._dataset = dataset
        self._class_weight = class_weight

    @property
    def num_batches(self) -> int | None:
        count = self._dataset.cardinality()
        return count if count >= 0 else None

    @property
    def batch_size(self) -> int | None:
        return None

    def steps(self, count: int, begin: Callable[[], None]) -> Iterator[Parts]:
        """The local replicas' parts of each step of one pass; opened at once, by all processes together.

        Args:
            count: How many steps to leave out at the beginning.
            begin: Called before the first of them is read, or its order drawn.
        """
        begin()
        steps, can_run_ahead = self._dataset.parts(count)
        return self._weighted(steps, can_run_ahead)

    def _weighted(self, steps: Iterator[Parts], can_run_ahead: bool) -> Iterator[Parts]:
        # In a thread from the first step on: Keras opens a pass at the end that it may never read.
        for parts in Ahead(steps, _AHEAD) if can_run_ahead else steps:
            yield parts if self._class_weight is None else self._with_class_weights(parts)

    def _with_class_weights(self, parts: Parts) -> Parts:
        weighed = [self._with_class_weight(part) for part in parts]
        return BatchParts(weighed, parts.shares) if isinstance(parts, BatchParts) else weighed

    def _with_class_weight(self, part: Any) -> Any:
        x, y, sample_weight = unpack_x_y_sample_weight(part)
        if y is None or sample_weight is not None:
            raise ArgumentError(
                "class_weight needs a data set of (inputs, targets); this one gives "
                + ("no targets" if y is None else "sample weights as well"),
                fix="give the weights of rows in the data set: (inputs, targets, weights)",
            )
        return x, y, class_weight_to_sample_weights(y, self._class_weight)


def adapted(
    make: Callable[[Divided, Any], Any] | None,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: Any = None,
    steps_per_epoch: Any = None,
    shuffle: Any = False,
    class_weight: Any = None,
) -> Any | None:
    """What `make` makes of `x` if it is divided among replicas, else None.

    Args:
        make: Of the data set and the class weights; None if no model of a strategy is running.
        x, y, sample_weight, batch_size, steps_per_epoch, shuffle, class_weight: As Keras's `get_data_adapter` gets
            them; the data set has batches and an order of its own.

    Raises:
        ContextError: the model was not made under a strategy.
        ArgumentError: there are targets or weights beside the data set, or it is of a strategy with other replicas.
    """
    del batch_size, steps_per_epoch, shuffle
    if not isinstance(x, Divided):
        return None
    if make is None:
        raise ContextError(
            "a DistributedDataset was given to a model that was not made under a strategy",
            fix="make and compile the model inside `with strategy.scope():`, or give it the data set itself",
        )
    if y is not None or sample_weight is not None:
        raise ArgumentError(
            f"{'targets' if y is not None else 'sample weights'} were given beside a DistributedDataset",
            fix="let the data set give (inputs, targets) or (inputs, targets, weights)",
        )
    return make(x, class_weight)
