# SPDX-License-Identifier: Apache-2.0
"""Data sets whose elements hold a part for each replica."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from stratagem._core import nest, values
from stratagem._core.values import DistributedValues, PerReplica
from stratagem.data._feeds import BatchParts, Divided, Feed, Parts, Place
from stratagem.data._policy import ShardReport
from stratagem.data._prefetch import Ahead
from stratagem.data._spec import PerReplicaSpec, TensorSpec, spec_of
from stratagem.engines.base import Engine
from stratagem.errors import ArgumentError, ContextError, OutOfRangeError

__all__ = ["DistributedDataset", "DistributedIterator", "Element", "EngineJob", "OptionalElement"]

_logger = logging.getLogger("stratagem")
_ON_HOST = "OSUMm"  # kinds of NumPy's dtypes that no framework computes with


class EngineJob:
    """How feeds tell the other processes something: by an engine's collectives.

    Args:
        engine: Connected.
        place: Which replicas are whose.
    """

    def __init__(self, engine: Engine, place: Place) -> None:
        self._engine = engine
        self._place = place

    def say(self, mine: Any) -> list[Any]:
        """What each worker's first process says, by worker."""
        said = self._engine.all_processes_objects(mine)
        return list(said[:: len(said) // self._place.num_workers])

    def take(self, brought: Any, source: int, what: str) -> Any:
        """What the process of replica `source` brought."""
        return self._engine.take_object(brought, source, what)

    def hand_out(self, items: Iterator[Any] | None, source: int, what: str, depth: int) -> Iterator[Any]:
        """Each of `items`, which the process of replica `source` reads ahead."""
        return self._engine.hand_out(items, source, what, depth)


class Element:
    """How the parts of a step become what the user gets.

    Args:
        engine: Connected.
        num_replicas: With one in all, an element is that replica's part itself, unless `wraps`.
        wraps: Whether even then it is a value per replica.
        to_device: Whether parts go to their replicas' devices.
    """

    def __init__(self, engine: Engine, num_replicas: int, *, wraps: bool, to_device: bool) -> None:
        self._engine = engine
        self._plain = num_replicas == 1 and not wraps
        self._to_device = to_device

    @property
    def is_chiefs(self) -> bool:
        """Whether this process is the chief, which says what is to be said once."""
        return self._engine.local_replica_ids[0] == 0

    def refuse_in_trace(self) -> None:
        """Called before an element is taken.

        Raises:
            TracingError: a function is being traced, which would see that element for ever.
        """
        self._engine.refuse_reading_in_trace()

    def of(self, parts: Sequence[Any]) -> Any:
        """One element out of the local replicas' parts."""
        if self._plain:
            return nest.map_structure(self._placed, parts[0])
        joined = self._joined
        if isinstance(parts, BatchParts):
            rows = tuple((share.start, share.rows, share.global_rows) for share in parts.shares)

            def joined(leaves: Sequence[Any], replica_ids: Sequence[int]) -> DistributedValues:
                made = self._joined(leaves, replica_ids)
                made.keep_rows(rows)
                return made

        return values.regroup(parts, self._engine.local_replica_ids, joined, keep_none=True)

    def _joined(self, leaves: Sequence[Any], replica_ids: Sequence[int]) -> DistributedValues:
        if not self._to_device or any(_on_host(leaf) for leaf in leaves):
            return PerReplica(leaves, replica_ids)
        if len({tuple(leaf.shape) for leaf in leaves if hasattr(leaf, "shape")}) == 1:
            joined = self._engine.per_replica(PerReplica(leaves, replica_ids))
            if joined.stack is not None:
                return joined
        return PerReplica([self._engine.fetched(leaf) for leaf in leaves], replica_ids)

    def _placed(self, leaf: Any) -> Any:
        return leaf if not self._to_device or _on_host(leaf) else self._engine.fetched(leaf)


class OptionalElement:
    """An element, or none where the data set has ended: the counterpart of `tf.experimental.Optional`."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = elements

    def has_value(self) -> bool:
        """Whether there is an element."""
        return bool(self._elements)

    def get_value(self) -> Any:
        """The element.

        Raises:
            ArgumentError: there is none.
        """
        if not self._elements:
            raise ArgumentError("the data set has ended, so there is no value", fix="ask has_value() first")
        return self._elements[0]


class DistributedIterator(Iterator[Any]):
    """One pass over a `DistributedDataset`: `tf.distribute.DistributedIterator`.

    All processes make it and ask it for elements together. At the end `next` raises StopIteration, on all of them in
    the same step.

    Args:
        dataset: What it passes over.
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._elements: Iterator[Any] | None = None
        self._done = 0

    @property
    def element_spec(self) -> Any:
        """Structure of the elements, with a `PerReplicaSpec` for each leaf."""
        return self._dataset.element_spec

    def __next__(self) -> Any:
        self._dataset.element.refuse_in_trace()
        if self._elements is None:
            self._elements = self._dataset.open(self._done)
        element = next(self._elements)
        self._done += 1
        return element

    def get_next(self) -> Any:
        """The next element.

        Raises:
            OutOfRangeError: there is none, as TensorFlow's error of that name says.
        """
        optional = self.get_next_as_optional()
        if not optional.has_value():
            raise OutOfRangeError(
                f"the data set has ended after {self._done} steps",
                fix="iterate with a for loop, or make a new iterator for the next epoch",
            )
        return optional.get_value()

    def get_next_as_optional(self) -> OptionalElement:
        """The next element, or an empty `OptionalElement` at the end."""
        try:
            return OptionalElement([next(self)])
        except StopIteration:
            return OptionalElement([])

    def state_dict(self) -> dict[str, int]:
        """Where the pass stands: {"steps": elements given so far} (not in `tf.distribute`)."""
        return {"steps": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where another iterator stood; to be called before the first element (not in `tf.distribute`).

        Raises:
            ContextError: elements have been given already.
        """
        if self._elements is not None:
            raise ContextError("the iterator has begun already", fix="load the state into a new one: iter(dataset)")
        self._done = state["steps"]


class DistributedDataset(Divided, Iterable[Any]):
    """A data set whose elements hold a part for each replica: `tf.distribute.DistributedDataset`.

    Strategies make it. To iterate again begins a new pass.

    Args:
        feed: Where the parts come from.
        element: What they become.
        spec: Structure of `TensorSpec`s of a replica's part; None if an element has to tell.
        report: How the data set is divided; called once it is asked for.
        num_replicas: Over all processes.
        depth: How many elements may wait.
    """

    def __init__(
        self,
        feed: Feed,
        element: Element,
        spec: Any | None,
        report: Callable[[], ShardReport],
        num_replicas: int,
        depth: int,
    ) -> None:
        self.element = element
        self._feed = feed
        self._spec = spec
        self._report = report
        self._num_replicas = num_replicas
        self._depth = depth
        self._told = False

    @property
    def element_spec(self) -> Any:
        """Structure of the elements, with a `PerReplicaSpec` for each leaf; with one replica in all a `TensorSpec`.

        A data set that knows nothing of its elements is read for one, which all processes do together.
        """
        if self._spec is None:
            parts = next(self._feed.open(0)[0], None)
            if parts is None:
                raise ArgumentError("the data set is empty, so nobody knows what its elements look like")
            self._spec = spec_of(parts[0], None)
        if self.element._plain:
            return self._spec
        return _map_specs(lambda spec: PerReplicaSpec([spec] * self._num_replicas), self._spec)

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(self)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`reduce_func(state, element)` for each element of a pass, from `initial_state` on.

        Returns:
            The last state.
        """
        return functools.reduce(reduce_func, self, initial_state)

    def cardinality(self) -> int:
        """Steps of a pass: -1 for one without an end, -2 if nobody knows, as `tf.data` counts."""
        steps = self.shard_report().steps_per_epoch
        return -2 if steps is None else steps

    def shard_report(self) -> ShardReport:
        """How it is divided among the workers (not in `tf.distribute`)."""
        return self._report()

    @property
    def num_replicas(self) -> int:
        """Over all processes (not in `tf.distribute`)."""
        return self._num_replicas

    def parts(self, start: int) -> tuple[Iterator[Parts], bool]:
        """The replicas' parts of a pass, on the host (not in `tf.distribute`)."""
        report = self._report()
        if not self._told and report.num_workers > 1 and self.element.is_chiefs:
            _logger.info("%s", report)
        self._told = True
        return self._feed.open(start)

    def open(self, start: int) -> Iterator[Any]:
        """The elements of a pass without the first `start` ones (not in `tf.distribute`)."""
        steps, can_run_ahead = self.parts(start)
        elements = map(self.element.of, steps)
        # On their devices before they are asked for.
        return Ahead(elements, self._depth) if can_run_ahead else elements


def _on_host(leaf: Any) -> bool:
    return isinstance(leaf, (str, bytes)) or (
        isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in _ON_HOST
    )


def _map_specs(fn: Callable[[Any], Any], spec: Any) -> Any:
    if isinstance(spec, TensorSpec):
        return fn(spec)
    if isinstance(spec, dict):
        return {key: _map_specs(fn, part) for key, part in spec.items()}
    return type(spec)(_map_specs(fn, part) for part in spec)
