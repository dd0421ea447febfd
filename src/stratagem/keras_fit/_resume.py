# SPDX-License-Identifier: Apache-2.0
"""Where a `fit` is in its data, and how another one goes on from there.

Keras reads data in passes: one an epoch, or with `steps_per_epoch` one that goes on from epoch to epoch. A pass is
known by the random states in which it was opened and begun, and by how many of its batches have been trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import keras
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

from stratagem.keras_fit._resume_random import RandomStates

__all__ = [
    "Framework",
    "Opening",
    "Position",
    "Progress",
    "current",
    "dropped",
    "during",
    "enumerate_steps",
    "listed",
    "opened",
]

# Opens a pass: how many batches to leave out, and what to call between opening it and reading the first.
Opening = Callable[[int, Callable[[], None]], Iterator[Any]]


class Framework(Protocol):
    """What differs between frameworks."""

    def take_random_states(self, adapter: Any) -> dict[str, Any]:
        """All random states from which orders of data may be drawn, those of `adapter`'s source too, as arrays."""
        ...

    def put_random_states(self, states: RandomStates, adapter: Any) -> None:
        """Go on with them; those of another framework are left out."""
        ...

    def knows_order(self, adapter: Any) -> bool:
        """Whether the order of the data depends on these states alone."""
        ...

    def take_replica_states(self, model: Any) -> list[dict[str, Any]]:
        """The random states of this process's replicas that are not those of the process, as arrays."""
        ...

    def put_replica_states(self, model: Any, states: Sequence[RandomStates]) -> None:
        """Go on with them; `states` are those of all replicas that there were."""
        ...


@dataclass(frozen=True)
class Position:
    """Where a `fit` is in its data.

    Attributes:
        step: Batches of the epoch that have been trained on.
        delivered: Batches of the pass that have.
        passes_before: Of each pass before it, whether something of it was read.
        opened: The random states in which the pass was opened, or None if the next epoch opens one.
        begun: Those before its first batch was read, or None if none was.
        now: Those at the moment.
    """

    step: int
    delivered: int
    passes_before: Sequence[bool]
    opened: RandomStates | None
    begun: RandomStates | None
    now: RandomStates


class Progress:
    """One `fit`.

    Args:
        framework: Below Keras.
    """

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self._adapter: Any = None
        self._tracks = False
        self._resumed: Position | None = None
        self._steps_to_pass = 0
        self._epoch_iterator: Any = None
        self._passes_before: list[bool] = []
        self._pass: _Pass | None = None
        self._at_end: list[Callable[[], None]] = []

    def track(self, position: Position | None) -> None:
        """Follow the data from now on, and go on from `position`; of a `fit` that nobody asks this, nothing is kept."""
        self._tracks = True
        self._resumed = position
        if position is not None:
            self._steps_to_pass = position.step
            self.framework.put_random_states(position.now, None)

    def at_end(self, call: Callable[[], None]) -> None:
        """Call `call` when the `fit` ends, however it does."""
        self._at_end.append(call)

    def close(self) -> None:
        """The `fit` has ended."""
        for call in self._at_end:
            call()

    def position(self, step: int) -> Position:
        """Where it is now, `step` batches into the epoch; 0 between two epochs."""
        assert self._pass is not None, "a batch has been trained on"
        now, before, this = self._take(), tuple(self._passes_before), self._pass
        if step or self._epoch_iterator.steps_per_epoch is not None:
            return Position(step, this.delivered, before, this.opened, this.begun, now)
        return Position(0, 0, (*before, this.delivered > 0), None, None, now)

    def is_last(self, step: int) -> bool:
        """Whether the epoch has no batch after `step` of them; of data of unknown length one is read ahead to know."""
        steps = self._epoch_iterator.num_batches
        if steps is None:
            assert self._pass is not None, "a batch has been trained on"
            return self._pass.is_over()
        whole = self._epoch_iterator.data_adapter.num_batches
        return step >= steps or (whole is not None and self._epoch_iterator._steps_seen >= whole)

    def numbered(self, steps: Iterator[Any], epoch_iterator: Any) -> Iterator[Any]:
        """Keras's steps of an epoch, without those that were done before the program was stopped."""
        self._epoch_iterator = epoch_iterator
        resumed = self._resumed
        if resumed is None:
            yield from steps
            return
        for _ in range(self._steps_to_pass // epoch_iterator.steps_per_execution):
            next(steps, None)
        first = next(steps, None)
        if first is None:
            return
        if resumed.opened is not None:
            # Keras ends a pass of known length by this count.
            epoch_iterator._steps_seen = resumed.delivered + epoch_iterator.steps_per_execution
        yield first
        yield from steps

    def opened(self, open_pass: Opening, adapter: Any) -> Iterator[Any]:
        """The batches of a pass; the first one goes on where the program was stopped."""
        if not self._tracks:
            return open_pass(0, _nothing)
        self._adapter = getattr(adapter, "inner", adapter)
        resumed, self._resumed = self._resumed, None
        if self._pass is not None:
            self._passes_before.append(self._pass.delivered > 0)
        if resumed is not None:
            self._pass = self._go_on(resumed, open_pass)
        else:
            self._pass = _Pass(open_pass(0, _nothing), 0, self._take(), self._take)
        return self._pass

    def _go_on(self, resumed: Position, open_pass: Opening) -> _Pass:
        # What callbacks drew when an epoch began that was in its middle was drawn before; else it is drawn now.
        common = {} if resumed.step else self.framework.take_random_states(None)
        now = {**resumed.now, **common}
        self._passes_before = list(resumed.passes_before)
        self._repeat(resumed.passes_before, open_pass)
        if resumed.opened is None:
            self._put(now)
            return _Pass(open_pass(0, _nothing), 0, now, self._take)
        begun = resumed.begun
        self._put(resumed.opened)
        batches = open_pass(resumed.delivered, _nothing if begun is None else lambda: self._put(begun))
        self._put(now)
        return _Pass(batches, resumed.delivered, resumed.opened, self._take, begun)

    def _repeat(self, passes: Sequence[bool], open_pass: Opening) -> None:
        """Open the passes before as often as they were: a data set may have another order in each."""
        # A generator is one pass, which can't be opened again.
        if self.framework.knows_order(self._adapter) or isinstance(self._adapter, GeneratorDataAdapter):
            return
        for was_read in passes:
            batches = open_pass(0, _nothing)
            if was_read:
                next(batches, None)

    def _take(self) -> RandomStates:
        return self.framework.take_random_states(self._adapter)

    def _put(self, states: RandomStates) -> None:
        self.framework.put_random_states(states, self._adapter)


class _Pass:
    """The batches of one pass, counted."""

    def __init__(
        self,
        batches: Iterator[Any],
        delivered: int,
        opened: RandomStates,
        take: Callable[[], RandomStates],
        begun: RandomStates | None = None,
    ) -> None:
        self._batches = batches
        self._take = take
        self._ahead: list[Any] = []
        self.delivered = delivered
        self.opened: RandomStates = opened
        self.begun = begun

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._ahead.pop() if self._ahead else self._read()
        self.delivered += 1
        return batch

    def is_over(self) -> bool:
        """Whether there is no further batch."""
        if not self._ahead:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                return True
        return False

    def _read(self) -> Any:
        if self.begun is None:
            self.begun = self._take()
        return next(self._batches)


_running: list[Progress | None] = []


def current() -> Progress | None:
    """That of the `fit` that runs, or None."""
    return _running[-1] if _running else None


@contextmanager
def during(method: str, framework: Framework) -> Iterator[None]:
    """Around a method of a model."""
    progress = Progress(framework) if method == "fit" else None
    _running.append(progress)
    try:
        yield
    finally:
        _running.pop()
        if progress is not None:
            progress.close()


def listed(options: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a method with a lone callback in a list: else Keras calls it on another thread."""
    lone = options.get("callbacks")
    if isinstance(lone, keras.callbacks.Callback) and not isinstance(lone, keras.callbacks.CallbackList):
        return {**options, "callbacks": [lone]}
    return options


def enumerate_steps(original: Callable[..., Iterator[Any]], epoch_iterator: Any) -> Iterator[Any]:
    """Stands in for `_enumerate_iterator` of Keras's epoch iterators."""
    progress = current()
    steps = original(epoch_iterator)
    return steps if progress is None else progress.numbered(steps, epoch_iterator)


def opened(open_pass: Opening, adapter: Any) -> Iterator[Any]:
    """The batches of a pass that is opened now."""
    progress = current()
    return open_pass(0, _nothing) if progress is None else progress.opened(open_pass, adapter)


def dropped(batches: Iterator[Any], count: int, begin: Callable[[], None]) -> Iterator[Any]:
    """`batches` without the first `count`, which are read."""
    begin()
    for _ in range(count):
        next(batches, None)
    return batches


def _nothing() -> None:
    """What is called where nothing is to be done."""
