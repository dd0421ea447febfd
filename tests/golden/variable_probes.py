# SPDX-License-Identifier: Apache-2.0
"""The programs behind the variables of custom.json, asked of Stratagem in one process of a job.

Everything comes back as plain numbers: a list has an entry for each replica of the process, an error is the names of
its classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")


def plain(value: Any) -> Any:
    import keras

    import stratagem as distribute

    if value is None:
        return None
    if isinstance(value, distribute.DistributedValues):
        return [plain(one) for one in value.values]
    return np.asarray(keras.ops.convert_to_numpy(value)).tolist()


def asked(thunk: Callable[[], Any]) -> Any:
    try:
        return plain(thunk())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return {"error": [kind.__name__ for kind in type(error).__mro__]}


def combination(synchronization: str, aggregation: str, all_programs: bool) -> dict[str, Any]:
    """For each program what it returned, and how the variable was read after it."""
    import keras

    import stratagem as distribute

    strategy = distribute.MirroredStrategy()
    update = strategy.extended.update
    three = keras.ops.convert_to_tensor(3.0)
    each = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group + 1)
    )

    def made() -> Any:
        with strategy.scope():
            return distribute.Variable(
                10.0,
                synchronization=distribute.VariableSynchronization[synchronization],
                aggregation=distribute.VariableAggregation[aggregation],
            )

    def own() -> Any:
        replica = distribute.get_replica_context()
        return keras.ops.cast(keras.ops.convert_to_tensor(replica.replica_id_in_sync_group), "float32") + 1.0

    def in_scope(thunk: Callable[[], Any]) -> Any:
        with strategy.scope():
            return thunk()

    def compiled(thunk: Callable[[], Any]) -> Any:
        return distribute.function(lambda: strategy.run(thunk))()

    def merged(variable: Any) -> Any:
        return distribute.get_replica_context().merge_call(
            lambda _, given: update(variable, lambda copy, part: copy.assign_add(part), args=(given,)), args=(own(),)
        )

    def state(variable: Any) -> dict[str, Any]:
        return {
            "per_replica": [plain(one) for one in strategy.experimental_local_results(variable)],
            "cross_read": asked(lambda: in_scope(variable.read_value)),
            "outside_read": asked(variable.numpy),
            "replica_read": asked(lambda: strategy.run(variable.read_value)),
        }

    programs: dict[str, Callable[[Any], Any]] = {
        "replica: v.assign(r+1)": lambda v: strategy.run(lambda: v.assign(own())),
    }
    if all_programs:
        programs |= {
            "replica: v.assign_add(r+1)": lambda v: strategy.run(lambda: v.assign_add(own())),
            "replica: v.assign_sub(r+1)": lambda v: strategy.run(lambda: v.assign_sub(own())),
            "replica: v.assign(one eager tensor 3 captured by all replicas)": lambda v: strategy.run(
                lambda: v.assign(three)
            ),
            "replica: v.assign_add(one eager tensor 3 captured by all replicas)": lambda v: strategy.run(
                lambda: v.assign_add(three)
            ),
            "replica: v.assign(tf.constant(3) made inside fn)": lambda v: strategy.run(
                lambda: v.assign(keras.ops.convert_to_tensor(3.0))
            ),
            "replica: v.assign_add(tf.constant(3) made inside fn)": lambda v: strategy.run(
                lambda: v.assign_add(keras.ops.convert_to_tensor(3.0))
            ),
            "replica: v.assign(Python 3)": lambda v: strategy.run(lambda: v.assign(3)),
            "replica: v.assign_add(Python 3)": lambda v: strategy.run(lambda: v.assign_add(3)),
            "replica tf.function: v.assign_add(Python 3)": lambda v: compiled(lambda: v.assign_add(3)),
            "replica tf.function: v.assign(r+1)": lambda v: compiled(lambda: v.assign(own())),
            "replica tf.function: v.assign_add(r+1)": lambda v: compiled(lambda: v.assign_add(own())),
            "replica: v.assign_add(r+1, read_value=False)": lambda v: strategy.run(
                lambda: v.assign_add(own(), read_value=False)
            ),
            "cross: v.assign(3)": lambda v: in_scope(lambda: v.assign(three)),
            "cross: v.assign_add(3)": lambda v: in_scope(lambda: v.assign_add(three)),
            "cross: v.assign_sub(3)": lambda v: in_scope(lambda: v.assign_sub(three)),
            "cross: v.assign(PerReplica r+1)": lambda v: in_scope(lambda: v.assign(each)),
            "cross: v.assign_add(PerReplica r+1)": lambda v: in_scope(lambda: v.assign_add(each)),
            "outside: v.assign(3)": lambda v: v.assign(three),
            "outside: v.assign_add(3)": lambda v: v.assign_add(three),
            "outside: v.assign(PerReplica r+1)": lambda v: v.assign(each),
            "cross: extended.update(v, assign_add, PerReplica r+1)": lambda v: in_scope(
                lambda: update(v, lambda copy, part: copy.assign_add(part), args=(each,))
            ),
            "cross: extended.update(v, assign_add, 3)": lambda v: in_scope(
                lambda: update(v, lambda copy, part: copy.assign_add(part), args=(three,))
            ),
            "replica: merge_call -> extended.update assign_add": lambda v: strategy.run(lambda: merged(v)),
        }
    answers: dict[str, Any] = {}
    for name, program in programs.items():
        variable = made()
        result = asked(lambda variable=variable, program=program: program(variable))
        answers[name] = {"result": result, **state(variable)}
    if synchronization == "ON_READ" and all_programs:
        variable = made()
        strategy.run(lambda: variable.assign(own()))
        prefix = "after replica assign(r+1): "
        answers[prefix + "v + 0 in cross / outside / replica"] = [
            asked(lambda: in_scope(lambda: variable + 0.0)),
            asked(lambda: variable + 0.0),
            asked(lambda: strategy.run(lambda: variable + 0.0)),
        ]
        answers[prefix + "strategy.reduce SUM axis=None"] = asked(lambda: strategy.reduce("SUM", variable, axis=None))
        answers[prefix + "cross read inside tf.function"] = asked(
            distribute.function(lambda: in_scope(variable.read_value))
        )
    return answers


def others() -> dict[str, Any]:
    """What custom.json has of two replicas beside the combinations."""
    import keras

    import stratagem as distribute

    strategy = distribute.MirroredStrategy()
    calls: list[int] = []

    def initial() -> Any:
        calls.append(1)
        return keras.ops.convert_to_tensor(float(len(calls)))

    with strategy.scope():
        counted = distribute.Variable(initial)
        drawn = distribute.Variable(lambda: np.random.default_rng().uniform(size=1).astype("float32"))
        pair = distribute.Variable([1.0, 2.0], aggregation=distribute.VariableAggregation.SUM)
        of_keras = keras.Variable([1.0, 2.0], aggregation="sum")
    elsewhere = keras.Variable(1.0)
    other = distribute.MirroredStrategy()
    with other.scope():
        foreign = distribute.Variable(1.0)

    def gradient() -> Any:
        replica = distribute.get_replica_context()
        scale = keras.ops.cast(keras.ops.convert_to_tensor(replica.replica_id_in_sync_group), "float32") + 1.0
        return distribute.value_and_grad(lambda: keras.ops.sum(pair * pair) * scale, [pair])()[1][0]

    def assign_in_scope() -> None:
        with strategy.scope():
            foreign.assign(2.0)

    before = plain(pair * 2), plain(strategy.run(lambda: pair * 2)), plain(pair[0])
    pair.assign([3.0, 2.0])  # as the recording's scatter_add left it, which Keras variables don't have
    created = strategy.extended.variable_created_in_scope
    return {
        "init_callable_number_of_calls": [len(calls), plain(counted.replica_values)],
        "drawn": plain(drawn.replica_values),
        "variable_created_in_scope": [created(pair), created(elsewhere)],
        "distribute_strategy_is_s": pair.distribute_strategy is strategy,
        "v.name / shape / dtype": [tuple(pair.shape), pair.dtype],
        "v * 2 outside": before[0],
        "v * 2 in replica": before[1],
        "v[0] slice outside": before[2],
        "variable_of_other_strategy_read_in_run": asked(lambda: strategy.run(foreign.read_value)),
        "variable_of_other_strategy_assign_in_scope": asked(assign_in_scope),
        "gradient_of_mirrored_variable_in_run": plain(strategy.run(gradient)),
        "value_container": strategy.extended.value_container(pair) is pair,
        "of Keras": plain(strategy.run(lambda: of_keras.assign(keras.ops.convert_to_tensor([1.0, 3.0])))),
    }
