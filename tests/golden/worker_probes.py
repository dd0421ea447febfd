# SPDX-License-Identifier: Apache-2.0
"""The recorded programs of two workers, asked of a MultiWorkerMirroredStrategy in each worker's process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import stratagem

AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
SYNCHRONIZATIONS = ("ON_WRITE", "ON_READ")


def datasets(strategy: Any) -> dict[str, Any]:
    """Which rows this worker gets in which step, by every policy and by a function."""
    import tensorflow as tf

    def steps(distributed: Iterable[Any]) -> list[Any]:
        return [[part.tolist() for part in strategy.experimental_local_results(element)] for element in distributed]

    def of_function(make: Callable[[Any], Any]) -> list[Any]:
        return steps(strategy.distribute_datasets_from_function(make))

    found: dict[str, Any] = {}
    for policy in ("DATA", "OFF", "AUTO"):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
        for n in (10, 11, 16):
            for drop in (False, True):
                dataset = tf.data.Dataset.range(n).batch(4, drop_remainder=drop).with_options(options)
                name = f"{policy} n={n} global_batch=4 drop_remainder={drop}"
                found[name] = steps(strategy.experimental_distribute_dataset(dataset))
        found[f"report {policy}"] = str(strategy.shard_report())
    seen = []

    def sharded(context: Any) -> Any:
        seen.append([context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync])
        dataset = tf.data.Dataset.range(10).shard(context.num_input_pipelines, context.input_pipeline_id)
        return dataset.batch(context.get_per_replica_batch_size(4))

    found["range(10).shard().batch(per_replica(4))"] = of_function(sharded)
    found["InputContext [num_input_pipelines, input_pipeline_id, num_replicas_in_sync]"] = seen
    range_of = tf.data.Dataset.range
    found["uneven: worker i has range(3+2i).batch(2)"] = of_function(
        lambda context: range_of(3 + 2 * context.input_pipeline_id).batch(2)
    )
    found["an empty worker"] = of_function(lambda context: range_of(5 * context.input_pipeline_id).batch(2))
    found["nobody knows how many"] = of_function(
        lambda context: range_of(5 + 30 * context.input_pipeline_id).filter(lambda x: x > 2).batch(2)
    )
    task = strategy.cluster_resolver.task_id
    names = [f"{name}.txt.{task}" for name in "abc"]
    for number, name in enumerate(names):
        with open(name, "w") as file:
            file.write("".join(f"{10 * number + row}\n" for row in range(3)))
    for count in (3, 1):
        lines = tf.data.TextLineDataset(names[:count]).map(lambda line: tf.strings.to_number(line, tf.int32)).batch(4)
        found[f"{count} files"] = steps(strategy.experimental_distribute_dataset(lines))
        found[f"report {count} files"] = str(strategy.shard_report())
    return found


def variables(strategy: Any) -> dict[str, Any]:
    """What writes inside and outside of replicas do to variables of each kind, here and for who reads them outside."""
    import keras

    from tests.golden.variable_probes import asked, plain

    rank = strategy.cluster_resolver.task_id
    three = keras.ops.convert_to_tensor(3.0)

    def own() -> Any:
        replica = stratagem.get_replica_context().replica_id_in_sync_group
        return keras.ops.cast(keras.ops.convert_to_tensor(replica), "float32") + 1.0

    def in_scope(thunk: Callable[[], Any]) -> Any:
        with strategy.scope():
            return thunk()

    programs: dict[str, Callable[[Any], Any]] = {
        "replica assign(r+1)": lambda v: strategy.run(lambda: v.assign(own())),
        "replica assign_add(r+1)": lambda v: strategy.run(lambda: v.assign_add(own())),
        "cross assign(3)": lambda v: in_scope(lambda: v.assign(three)),
        "cross assign_add(3)": lambda v: in_scope(lambda: v.assign_add(three)),
    }
    with strategy.scope():
        first = stratagem.Variable(np.float32(rank + 5))
    found: dict[str, Any] = {"init w+5 differs by worker: value after creation": plain(first)}
    for synchronization in SYNCHRONIZATIONS:
        for aggregation in AGGREGATIONS:
            answers = found[f"synchronization={synchronization} aggregation={aggregation}"] = {}
            for name, program in programs.items():
                with strategy.scope():
                    variable = stratagem.Variable(
                        10.0,
                        synchronization=stratagem.VariableSynchronization[synchronization],
                        aggregation=stratagem.VariableAggregation[aggregation],
                    )
                result = asked(lambda variable=variable, program=program: program(variable))
                (component,) = strategy.experimental_local_results(variable)
                answers[name] = {
                    "result": result,
                    "component": plain(component),
                    "outside_read": asked(variable.numpy),
                    "type": type(variable).__name__,
                }
    return found
