# SPDX-License-Identifier: Apache-2.0
"""How a strategy divides a data set among its workers and replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._core.input_options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
from stratagem.data._arrays import ArrayDataset
from stratagem.data._feeds import Feed, OwnFeed, Place, RowFeed, SharedFeed, pieces, sets_of
from stratagem.data._policy import ShardReport, choose
from stratagem.data._source import RowSource, Source
from stratagem.data._sources import source_of
from stratagem.data._spec import TensorSpec, empty_like
from stratagem.data._split import share_of
from stratagem.engines.base import Engine
from stratagem.errors import ArgumentError, ArgumentTypeError, ReplicaFailedError
from stratagem.strategies._distributed_dataset import DistributedDataset, Element, EngineJob

__all__ = ["distribute", "distribute_from_function"]

_PER_REPLICA = InputReplicationMode.PER_REPLICA
_Said = tuple[int | None, Any]  # of a worker: the steps of its pass, if it knows, and the spec of an element


def distribute(
    dataset: Any, options: InputOptions | None, engine: Engine, place: Place, wraps: bool
) -> DistributedDataset:
    """A data set of global batches, divided.

    Raises:
        ArgumentError: the options do not go together, or ask for what the data set can't do.
        ArgumentTypeError: it is no data set of batches.
    """
    options = _checked(options)
    if options.experimental_replication_mode is _PER_REPLICA:
        raise ArgumentError(
            "InputReplicationMode.PER_REPLICA needs a data set for each replica",
            fix="give distribute_datasets_from_function a function that makes them",
        )
    if isinstance(dataset, DistributedDataset):
        raise ArgumentTypeError(
            "the data set has been distributed already", fix="give the data set that it was made from"
        )
    source = source_of(dataset)
    policy, reason = choose(source, place.num_workers)
    feed, steps = _feed(source, policy, engine, place, options)

    def report() -> ShardReport:
        rows = _rows_of_workers(source, place) if isinstance(source, ArrayDataset) else None
        return ShardReport(policy, reason, source.kind, place.num_workers, rows, steps)

    element = _element(engine, place, options, wraps)
    spec = _cut(source.element_spec, place, policy)
    depth = options.experimental_per_replica_buffer_size
    return DistributedDataset(feed, element, spec, report, place.num_replicas, depth)


def distribute_from_function(
    make: Callable[[InputContext], Any], options: InputOptions | None, engine: Engine, place: Place, wraps: bool
) -> DistributedDataset:
    """What a function makes for each worker, or for each replica: batches of one replica's rows.

    Raises:
        ArgumentError: the options do not go together.
        ArgumentTypeError: the function returns no data set of batches.
    """
    options = _checked(options)
    per_replica = options.experimental_replication_mode is _PER_REPLICA
    first = place.leader(place.worker)
    ids = range(first, first + place.per_worker) if per_replica else [place.worker]
    count = place.num_replicas if per_replica else place.num_workers
    job = EngineJob(engine, place)
    sources, said = _made(
        lambda: [source_of(make(InputContext(count, number, place.num_replicas))) for number in ids],
        lambda sources: (_num_steps(sources, per_replica, place), sources[0].element_spec),
        place,
        job,
    )
    num_steps = said[place.worker][0]
    known = [steps for steps, _ in said if steps is not None]
    longest = max(known) if len(known) == len(said) else None

    def steps() -> Any:
        if per_replica:
            return _together([source.batches(0) for source in sources])
        return sets_of(sources[0].batches(0), place.per_worker)

    depth = options.experimental_per_replica_buffer_size
    feed = OwnFeed(steps, num_steps, place, job, depth)
    reason = "each replica has a data set of its own" if per_replica else "each worker has a data set of its own"

    def report() -> ShardReport:
        return ShardReport(AutoShardPolicy.OFF, reason, "what the function makes", place.num_workers, None, longest)

    spec = said[0][1] if place.num_workers == 1 else None
    return DistributedDataset(feed, _element(engine, place, options, wraps), spec, report, place.num_replicas, depth)


def _made(
    make: Callable[[], list[Source]], describe: Callable[[list[Source]], _Said], place: Place, job: EngineJob
) -> tuple[list[Source], list[_Said]]:
    """What `make` makes, where this process reads for its worker, and what `describe` says of it on each worker.

    A failure on one worker is one on all.

    Raises:
        ReplicaFailedError: it failed on another worker.
    """
    sources: list[Source] = []
    error: Exception | None = None
    mine: Any = None
    if place.leads:
        try:
            sources = make()
            mine = describe(sources)
        except Exception as caught:  # noqa: BLE001 - raised again once the others know
            error = caught
    said = [(None, mine)]
    if not place.is_alone:
        said = job.say((None if error is None else f"{type(error).__name__}: {error}", mine))
    if error is not None:
        raise error
    for worker, (problem, _) in enumerate(said):
        if problem:
            raise ReplicaFailedError(f"worker {worker} could not make its data set: {problem}")
    return sources, [theirs for _, theirs in said]


def _feed(
    source: Source, policy: AutoShardPolicy, engine: Engine, place: Place, options: InputOptions
) -> tuple[Feed, int | None]:
    job, depth = EngineJob(engine, place), options.experimental_per_replica_buffer_size
    if policy is AutoShardPolicy.DATA:
        if isinstance(source, RowSource):
            return RowFeed(source, place, job), source.num_batches
        return SharedFeed(source, place, job, depth), source.num_batches
    mine = source if policy is AutoShardPolicy.OFF else source.of_worker(policy, place.num_workers, place.worker)
    return OwnFeed(lambda: pieces(mine, place), None, place, job, depth), None


def _element(engine: Engine, place: Place, options: InputOptions, wraps: bool) -> Element:
    to_device = options.experimental_fetch_to_device or options.experimental_place_dataset_on_device
    return Element(engine, place.num_replicas, wraps=wraps, to_device=to_device)


def _checked(options: InputOptions | None) -> InputOptions:
    if options is None:
        return InputOptions()
    if not isinstance(options, InputOptions):
        raise ArgumentTypeError(f"options={options!r:.60} is not an InputOptions", fix="stratagem.InputOptions(...)")
    if options.experimental_place_dataset_on_device and (
        options.experimental_fetch_to_device or options.experimental_replication_mode is not _PER_REPLICA
    ):
        raise ArgumentError(
            "experimental_place_dataset_on_device=True needs a data set for each replica, which is not fetched",
            fix="InputOptions(experimental_fetch_to_device=False, experimental_place_dataset_on_device=True, "
            "experimental_replication_mode=InputReplicationMode.PER_REPLICA)",
        )
    if options.experimental_per_replica_buffer_size < 1:
        raise ArgumentError(
            f"experimental_per_replica_buffer_size={options.experimental_per_replica_buffer_size} is less than 1",
            fix="say how many batches may wait",
        )
    return options


def _together(iterators: list[Any]) -> Any:
    """Steps with the next element of each, until all have ended; who has ended gives none of its rows."""
    last: list[Any] = [None] * len(iterators)
    while True:
        found = [next(iterator, None) for iterator in iterators]
        if all(element is None for element in found):
            return
        some = next(element for element in found if element is not None)
        last = [before if element is None else element for element, before in zip(found, last, strict=True)]
        yield [
            empty_like(before if before is not None else some) if element is None else element
            for element, before in zip(found, last, strict=True)
        ]


def _num_steps(sources: list[Source], per_replica: bool, place: Place) -> int | None:
    counts = [source.num_batches for source in sources]
    known = [count for count in counts if count is not None]
    if not counts or len(known) < len(counts):
        return None
    return max(known) if per_replica else -(-known[0] // place.per_worker)


def _cut(spec: Any, place: Place, policy: AutoShardPolicy) -> Any:
    """The spec of a replica's part of a global batch with `spec`."""
    if spec is None or isinstance(spec, TensorSpec):
        if spec is None or not spec.shape or spec.shape[0] is None:
            return spec
        rows, rest = spec.shape[0], spec.shape[1:]
        even = rows % place.num_replicas == 0
        return TensorSpec((rows // place.num_replicas if even else None, *rest), spec.dtype)
    if isinstance(spec, dict):
        return {key: _cut(part, place, policy) for key, part in spec.items()}
    return type(spec)(_cut(part, place, policy) for part in spec)


def _rows_of_workers(source: ArrayDataset, place: Place) -> tuple[int, ...]:
    rows = [0] * place.num_workers
    for batch in source.plans([0], 0):
        for replica in range(place.num_replicas):
            rows[replica // place.per_worker] += share_of(replica, place.num_replicas, len(batch)).rows
    return tuple(rows)
