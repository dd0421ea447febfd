# SPDX-License-Identifier: Apache-2.0
"""The recorded programs about data sets, asked of a strategy in a replica's process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import stratagem
from stratagem import InputOptions, InputReplicationMode

Found = dict[str, Any]


def probe(replicas: int) -> Found:
    """What every recorded program comes to here; a step is {replica: its rows} for this process's replicas."""
    strategy = stratagem.MirroredStrategy() if replicas > 1 else stratagem.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        pass
    return {"datasets": _datasets(strategy, replicas), "datasets_from_function": _from_function(strategy, replicas)}


def steps(strategy: Any, distributed: Iterable[Any]) -> list[dict[int, Any]]:
    """The elements of one pass."""
    return [local(strategy, element) for element in distributed]


def local(strategy: Any, element: Any) -> dict[int, Any]:
    """The rows of this process's replicas."""
    ids = strategy.extended.engine.local_replica_ids
    return dict(zip(ids, (_rows(part) for part in strategy.experimental_local_results(element)), strict=True))


def _rows(part: Any) -> Any:
    return part.tolist()


def _said(program: Callable[[], Any]) -> Any:
    try:
        return {"ok": program()}
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return {"error": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}


def _datasets(strategy: Any, replicas: int) -> Found:
    import tensorflow as tf

    def told(dataset: Any, **options: Any) -> Any:
        return _said(lambda: steps(strategy, strategy.experimental_distribute_dataset(dataset(), **options)))

    range_of = tf.data.Dataset.range
    found: Found = {}
    for n in (10, 11, 16, 17):
        for rows in (2 * replicas, 3 * replicas):
            for drop in (False, True):
                distributed = strategy.experimental_distribute_dataset(range_of(n).batch(rows, drop_remainder=drop))
                found[f"n={n} global_batch={rows} drop_remainder={drop}"] = {
                    "steps": steps(strategy, distributed),
                    "cardinality": distributed.cardinality(),
                    "shape": distributed.element_spec[0].shape if replicas > 1 else distributed.element_spec.shape,
                    "type": type(distributed).__name__,
                }
    batch = 2 * replicas
    other: dict[str, Any] = {
        f"n=5 global_batch={batch} (single, partial batch)": told(lambda: range_of(5).batch(batch)),
        f"n=1 global_batch={batch}": told(lambda: range_of(1).batch(batch)),
        "n=13 global_batch=12": told(lambda: range_of(13).batch(12)),
        "n=33 global_batch=16": told(lambda: range_of(33).batch(16)),
        "n=50 global_batch=16": told(lambda: range_of(50).batch(16)),
        "n=51 global_batch=16": told(lambda: range_of(51).batch(16)),
        "unbatched n=4": told(lambda: range_of(4)),
        "batch_before_map n=6 gb=4": told(lambda: range_of(6).batch(4).map(lambda x: x * 10)),
        "batch_then_prefetch n=6 gb=4": told(lambda: range_of(6).batch(4).prefetch(2)),
        "batch_then_repeat2 n=6 gb=4": told(lambda: range_of(6).batch(4).repeat(2)),
        "repeat2_then_batch n=6 gb=4": told(lambda: range_of(6).repeat(2).batch(4)),
        "batch_then_take n=8 gb=4": told(lambda: range_of(8).batch(4).take(1)),
        "batch_then_unbatch_then_batch n=8": told(lambda: range_of(8).batch(2).unbatch().batch(4)),
        "generator n=6 gb=4": told(
            lambda: tf.data.Dataset.from_generator(
                lambda: iter(range(6)), output_signature=tf.TensorSpec((), tf.int64)
            ).batch(4)
        ),
        "InputOptions(experimental_fetch_to_device=False) n=6 gb=4": told(
            lambda: range_of(6).batch(4), options=InputOptions(experimental_fetch_to_device=False)
        ),
        "InputOptions(PER_REPLICA) via experimental_distribute_dataset": told(
            lambda: range_of(6).batch(4),
            options=InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA),
        ),
        "distribute_numpy_array": told(lambda: np.arange(4)),
        "distribute_a_distributed_dataset": told(
            lambda: strategy.experimental_distribute_dataset(range_of(4).batch(4))
        ),
        "dict_elements n=6 gb=4": _said(lambda: _of_dicts(strategy, tf)),
        "iterate_twice n=6 gb=4": _said(lambda: _twice(strategy, range_of(6).batch(4))),
        "iterator_end": _said(lambda: _at_the_end(strategy, range_of(4).batch(4))),
    }
    if replicas > 1:
        other["distribute_in_replica_context"] = _said(
            lambda: strategy.run(lambda: strategy.experimental_distribute_dataset(range_of(4).batch(4)))
        )
    found["other"] = other
    return found


def _of_dicts(strategy: Any, tf: Any) -> list[dict[str, Any]]:
    arrays = {"x": np.arange(6, dtype=np.float32)[:, None], "y": np.arange(6)}
    distributed = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(arrays).batch(4))
    return [{key: local(strategy, value) for key, value in element.items()} for element in distributed]


def _twice(strategy: Any, dataset: Any) -> list[Any]:
    distributed = strategy.experimental_distribute_dataset(dataset)
    return [steps(strategy, distributed), steps(strategy, distributed)]


def _at_the_end(strategy: Any, dataset: Any) -> Found:
    distributed = strategy.experimental_distribute_dataset(dataset)
    iterator = iter(distributed)
    first = local(strategy, next(iterator))
    past_end = "StopIteration" if next(iterator, None) is None else "no error"
    iterator = iter(distributed)
    iterator.get_next()
    error = _said(iterator.get_next)["error"][0]
    iterator = iter(distributed)
    iterator.get_next_as_optional()
    return {
        "first": first,
        "next_past_end": past_end,
        "get_next_past_end": error,
        "optional_has_value_past_end": iterator.get_next_as_optional().has_value(),
        "iterator_type": type(iterator).__name__,
    }


def _from_function(strategy: Any, replicas: int) -> Found:
    import tensorflow as tf

    range_of = tf.data.Dataset.range
    contexts: list[list[int]] = []
    of_replicas: list[list[int]] = []

    def batches(dataset: Any, seen: list[list[int]], context: Any) -> Any:
        seen.append([context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync])
        return dataset.batch(2)

    def told(make: Callable[[Any], Any], options: InputOptions | None = None) -> Any:
        return _said(lambda: steps(strategy, strategy.distribute_datasets_from_function(make, options)))

    per_replica = InputOptions(
        experimental_replication_mode=InputReplicationMode.PER_REPLICA,
        experimental_place_dataset_on_device=True,
        experimental_fetch_to_device=False,
    )
    dropping = f"range({4 * replicas + 1}).batch(2,drop_remainder)"
    return {
        "steps_of_Dataset.range(7).batch(2)": told(lambda context: batches(range_of(7), contexts, context)),
        "range(8).batch(2)": told(lambda context: range_of(8).batch(2)),
        dropping: told(lambda context: range_of(4 * replicas + 1).batch(2, drop_remainder=True)),
        "experimental_name_still_exists": hasattr(strategy, "experimental_distribute_datasets_from_function"),
        "returns_non_dataset": told(lambda context: 7),
        "PER_REPLICA_mode_steps_range(5).batch(2)": told(
            lambda context: batches(range_of(5), of_replicas, context), per_replica
        ),
        "contexts": contexts,
        "PER_REPLICA_mode_contexts": of_replicas,
    }
