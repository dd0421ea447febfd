# SPDX-License-Identifier: Apache-2.0
"""What custom.json recorded from TensorFlow, asked of Stratagem: one function per section.

A function returns {name: record}, a record being {"ok": plain value} or {"error": class names, "text": text}.
They run in one process with all replicas (the fake engine) or in one process per replica (a pool); then each process
records its own part, and `custom_records.joined` puts the parts together.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from golden.custom_records import Records, record

import stratagem as distribute
from stratagem._core import values
from stratagem.engines import select
from stratagem.testing.fake_engine import FakeVariable

Thunk = Callable[[], Any]

# Only one of the replicas makes the call, which replicas in processes of their own notice by other means:
# tests of the engine see to those.
ONE_SIDED = (
    "different_structures_per_replica",
    "merge_call_on_only_one_replica",
    "all_reduce_on_only_one_replica",
)


def _together() -> bool:
    """Whether one process holds all replicas."""
    return select.engine().capabilities.many_replicas_per_process


def record_section(section: str, replicas: int) -> Records:
    """The records of a section in this process, for a pool or after `select.use(FakeEngine())`."""
    thunks = SECTIONS[section](replicas)
    alone = not _together()
    with np.errstate(all="ignore"):
        return {name: record(thunk) for name, thunk in thunks.items() if not (alone and name in ONE_SIDED)}


def _tensor(value: Any, dtype: Any = None) -> Any:
    array = np.asarray(value)
    if dtype is None:
        dtype = {"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype)
    return array if array.dtype.kind in "US" else select.engine().to_tensor(array.astype(dtype))


def _variable(value: float) -> Any:
    if select.engine().name == "fake":
        return FakeVariable(value)
    import keras

    return keras.Variable(value)


def _mirrored(replicas: int) -> distribute.MirroredStrategy:
    return distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])


def _per_replica(strategy: Any, given: Sequence[Any], dtype: Any = None) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: _tensor(given[context.replica_id_in_sync_group], dtype)
    )


def _here() -> Any:
    return distribute.get_replica_context()


def _id() -> int:
    return _here().replica_id_in_sync_group


def _in_scope(strategy: Any, thunk: Thunk) -> Any:
    with strategy.scope():
        return thunk()


def _context() -> dict[str, Any]:
    context = distribute.get_replica_context()
    return {
        "has_strategy": distribute.has_strategy(),
        "in_cross_replica_context": distribute.in_cross_replica_context(),
        "get_replica_context": context is not None,
        "get_strategy": type(distribute.get_strategy()).__name__,
        "replica_id": None if context is None else str(context.replica_id_in_sync_group),
    }


def run(replicas: int) -> dict[str, Thunk]:
    s = _mirrored(replicas)
    x = _tensor([1.0, 2.0])
    thunks: dict[str, Thunk] = {
        "num_replicas_in_sync": lambda: s.num_replicas_in_sync,
        "replica_id_eager": lambda: s.run(_id),
        "num_replicas_in_context": lambda: s.run(lambda: _here().num_replicas_in_sync),
        "context_devices": lambda: s.run(lambda: list(_here().devices)),
        "context_strategy_is_s": lambda: s.run(lambda: _here().strategy is s),
        "return_none": lambda: s.run(lambda: None),
        "return_python_int_same": lambda: s.run(lambda: 7),
        "return_python_str_same": lambda: s.run(lambda: "a"),
        "return_structure": lambda: s.run(lambda: {"a": _id(), "b": (_tensor(1.0), [_tensor(2.0)])}),
        "return_captured_tensor": lambda: s.run(lambda: x),
        "plain_tensor_arg_goes_to_every_replica": lambda: s.run(lambda a, b: a + b, args=(x,), kwargs={"b": 1.0}),
        "python_arg": lambda: s.run(lambda a: a, args=(3,)),
        "merge_call": lambda: s.run(
            lambda: _here().merge_call(lambda st, v: st.reduce("SUM", v, axis=None), args=(_id() + 1,))
        ),
        "merge_call_sees_per_replica": lambda: s.run(
            lambda: _here().merge_call(lambda _, v: isinstance(v, values.PerReplica), args=(_id() + 1,))
        ),
        "merge_call_returns_per_replica": lambda: s.run(lambda: _here().merge_call(lambda _, v: v, args=(_id() + 1,))),
    }
    if replicas == 1:
        return thunks
    pr = _per_replica(s, [[float(n)] for n in range(replicas)])
    thunks |= {
        "per_replica_arg": lambda: s.run(lambda a: a * 10, args=(pr,)),
        "per_replica_nested_arg": lambda: s.run(lambda d: d["k"][0] + d["c"], args=({"k": [pr], "c": 1.0},)),
        "per_replica_kwarg": lambda: s.run(lambda a=None: a - 1, kwargs={"a": pr}),
        "different_structures_per_replica": lambda: s.run(lambda: {"a": 1} if _id() == 0 else {"b": 2}),
        "different_python_values": lambda: s.run(_id),
        "exception_in_replica": lambda: s.run(lambda: 1 // (1 - _id())),
    }
    if _together():
        thunks["none_on_one_replica"] = lambda: s.run(lambda: None if _id() == 0 else _tensor(1.0))
    return thunks


_EMPTY = np.zeros((0,), np.float32)
_REDUCE = {
    2: {
        "scalars": [1.0, 2.0],
        "int_scalars": [1, 2],
        "vectors": [[1.0, 2.0], [3.0, 5.0]],
        "int_vectors": [[1, 2], [3, 5]],
        "uneven_1_2": [[1.0], [2.0, 4.0]],
        "uneven_3_1": [[1.0, 2.0, 3.0], [10.0]],
        "empty_on_replica_1": [[1.0, 3.0], _EMPTY],
        "both_empty": [_EMPTY, _EMPTY],
        "matrix_uneven_2x2_1x2": [[[1.0, 2.0], [3.0, 4.0]], [[10.0, 20.0]]],
        "matrix_2x2_2x2": [[[1.0, 2.0], [3.0, 4.0]], [[10.0, 20.0], [30.0, 40.0]]],
        "uneven_int_1_2": [[1], [2, 4]],
        "bool_vectors": [[True, False], [True, True]],
    },
    4: {
        "scalars": [1.0, 2.0, 3.0, 5.0],
        "vectors": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 9.0]],
        "uneven_2_2_1_0": [[1.0, 2.0], [3.0, 4.0], [6.0], _EMPTY],
    },
}


def reduce(replicas: int) -> dict[str, Thunk]:
    s = _mirrored(replicas)
    thunks: dict[str, Thunk] = {}
    for name, given in _REDUCE[replicas].items():
        value = _per_replica(s, given)
        for op in ("SUM", "MEAN"):
            for axis in (None, 0, 1, -1):
                if axis in (1, -1) and "matrix" not in name and name != "vectors":
                    continue
                thunks[f"{name}/{op} axis={axis}"] = lambda o=op, v=value, a=axis: s.reduce(o, v, axis=a)
    pr = _per_replica(s, [float(n + 1) for n in range(replicas)])
    v = _variable(4.0)
    reduce: Any = s.reduce
    other: dict[str, Thunk] = {
        "op_given_as/'sum'": lambda: s.reduce("sum", pr, axis=None),
        "op_given_as/'Mean'": lambda: s.reduce("Mean", pr, axis=None),
        "op_given_as/ReduceOp.SUM": lambda: s.reduce(distribute.ReduceOp.SUM, pr, axis=None),
        "op_given_as/'MAX'": lambda: s.reduce("MAX", pr, axis=None),
        "op_given_as/axis_omitted": lambda: reduce("SUM", pr),
        "plain_tensor_SUM": lambda: s.reduce("SUM", _tensor(3.0), axis=None),
        "plain_tensor_MEAN": lambda: s.reduce("MEAN", _tensor(3.0), axis=None),
        "plain_vector_SUM_axis0": lambda: s.reduce("SUM", _tensor([1.0, 2.0]), axis=0),
        "plain_vector_MEAN_axis0": lambda: s.reduce("MEAN", _tensor([1.0, 2.0]), axis=0),
        "python_float_SUM": lambda: s.reduce("SUM", 3.0, axis=None),
        "python_float_MEAN": lambda: s.reduce("MEAN", 3.0, axis=None),
        "python_zero_SUM": lambda: s.reduce("SUM", 0, axis=None),
        "numpy_SUM": lambda: s.reduce("SUM", np.float32(3.0), axis=None),
        "dict": lambda: s.reduce("SUM", {"a": pr, "b": pr}, axis=None),
        "nested_list_MEAN": lambda: s.reduce("MEAN", [pr, (pr,)], axis=None),
        "None": lambda: s.reduce("SUM", None, axis=None),
        "python_ints_returned_by_run": lambda: s.reduce("SUM", s.run(lambda: _id() + 1), axis=None),
        "same_python_int_returned_by_run": lambda: s.reduce("SUM", s.run(lambda: 1), axis=None),
        "same_constant_returned_by_run": lambda: s.reduce("SUM", s.run(lambda: _tensor(1.0)), axis=None),
        "called_in_replica_context": lambda: s.run(lambda: s.reduce("SUM", _tensor(1.0), axis=None)),
        "called_inside_scope": lambda: _in_scope(s, lambda: s.reduce("SUM", pr, axis=None)),
        "mirrored_variable_SUM": lambda: s.reduce("SUM", v, axis=None),
        "mirrored_variable_MEAN": lambda: s.reduce("MEAN", v, axis=None),
        "extended.reduce_to_SUM_same_destination": lambda: _in_scope(s, lambda: s.extended.reduce_to("SUM", pr, pr)),
        "extended.reduce_to_MEAN_variable_destination": lambda: _in_scope(
            s, lambda: s.extended.reduce_to(distribute.ReduceOp.MEAN, pr, v)
        ),
        "extended.batch_reduce_to": lambda: _in_scope(s, lambda: s.extended.batch_reduce_to("SUM", [(pr, v), (pr, v)])),
        "extended.broadcast_to": lambda: _in_scope(s, lambda: s.extended.broadcast_to(_tensor(2.0), v)),
    }
    if replicas == 2:
        other |= {
            "float16_MEAN": lambda: s.reduce("MEAN", _per_replica(s, [1.0, 2.0], np.float16), axis=None),
            "string": lambda: s.reduce("SUM", _per_replica(s, ["a", "b"]), axis=None),
            "scalar_axis0": lambda: s.reduce("SUM", pr, axis=0),
            "axis_out_of_range": lambda: s.reduce("SUM", _per_replica(s, [[1.0], [2.0]]), axis=3),
            "axis_tuple": lambda: s.reduce("SUM", _per_replica(s, [[[1.0]], [[2.0]]]), axis=(0, 1)),
            "mean_axis0_of_dict_uneven": lambda: s.reduce("MEAN", {"a": _per_replica(s, [[1.0], [2.0, 4.0]])}, axis=0),
        }
    return thunks | {f"other/{name}": thunk for name, thunk in other.items()}


_GATHER = {
    2: {
        "even_vectors": [[1.0, 2.0], [3.0, 4.0]],
        "uneven_1_3": [[1.0], [2.0, 3.0, 4.0]],
        "uneven_matrix_2x2_1x2": [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]],
        "uneven_cols_2x1_2x2": [[[1.0], [2.0]], [[3.0, 4.0], [5.0, 6.0]]],
        "empty_on_replica_1": [[1.0, 2.0], _EMPTY],
        "int": [[1], [2, 3]],
        "bool": [[True], [False, True]],
        "string": [["a"], ["b", "c"]],
        "scalars": [1.0, 2.0],
        "rank_mismatch": [[1.0], [[2.0]]],
        "other_dims_differ_2x2_1x3": [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0, 7.0]]],
    },
    4: {
        "uneven_2_1_0_3": [[1.0, 2.0], [3.0], _EMPTY, [4.0, 5.0, 6.0]],
        "matrix": [[[float(n), float(n)]] * (n + 1) for n in range(4)],
    },
}


def gather(replicas: int) -> dict[str, Thunk]:
    s = _mirrored(replicas)
    thunks: dict[str, Thunk] = {}
    for name, given in _GATHER[replicas].items():
        value = _per_replica(s, given)
        for axis in (0, 1):
            if axis == 1 and "matrix" not in name and "cols" not in name:
                continue
            thunks[f"{name}/strategy.gather axis={axis}"] = lambda v=value, a=axis: s.gather(v, axis=a)
            thunks[f"{name}/all_gather axis={axis}"] = lambda v=value, a=axis: s.run(
                lambda x: _here().all_gather(x, axis=a), args=(v,)
            )
    pr = _per_replica(s, [[float(n)] for n in range(replicas)])

    def in_run(fn: Callable[[Any], Any]) -> Thunk:
        return lambda: s.run(fn, args=(pr,))

    other: dict[str, Thunk] = {
        "gather_plain_tensor": lambda: s.gather(_tensor([1.0, 2.0]), axis=0),
        "gather_in_replica_context": lambda: s.run(lambda: s.gather(_tensor([1.0]), axis=0)),
        "gather_dict": lambda: s.gather({"a": pr}, axis=0),
        "gather_list": lambda: s.gather([pr, pr], axis=0),
        "gather_axis_minus_1": lambda: s.gather(pr, axis=-1),
        "gather_axis_too_big": lambda: s.gather(pr, axis=1),
        "all_gather_dict": in_run(lambda v: _here().all_gather({"a": v, "b": [v + 1]}, axis=0)),
        "all_gather_list": in_run(lambda v: _here().all_gather([v, v + 1], axis=0)),
        "all_gather_scalar": in_run(lambda v: _here().all_gather(v.sum(), axis=0)),
        "all_gather_python_list_of_floats": in_run(lambda _: _here().all_gather([1.0, 2.0], axis=0)),
        "all_gather_same_constant": in_run(lambda _: _here().all_gather(_tensor([1.0]), axis=0)),
    }
    if select.engine().name == "torch":
        uneven = _per_replica(s, [[float(n) for n in range(k + 1)] for k in range(replicas)])
        name = "gradient_of_all_gather: loss_r=sum(y*(1..n)*(r+1)), replica i holds i+1 elements"
        other[name] = lambda: s.run(_gather_gradient, args=(uneven,))
    return thunks | {f"other/{name}": thunk for name, thunk in other.items()}


def _gather_gradient(v: Any) -> Any:
    import torch

    leaf = v.clone().requires_grad_()
    gathered = _here().all_gather(leaf, axis=0)
    loss = (gathered * torch.arange(1.0, gathered.numel() + 1) * (_id() + 1)).sum()
    return torch.autograd.grad(loss, leaf)[0]


def all_reduce(replicas: int) -> dict[str, Thunk]:
    s = _mirrored(replicas)
    scalar = _per_replica(s, [float(n + 1) for n in range(replicas)])
    vector = _per_replica(s, [[n + 1.0, 10.0 * (n + 1)] for n in range(replicas)])
    whole = _per_replica(s, [n + 1 for n in range(replicas)])
    uneven = _per_replica(s, [[float(n) for n in range(k + 1)] for k in range(replicas)])
    thunks: dict[str, Thunk] = {}
    for op in ("SUM", "MEAN"):

        def reduced(fn: Callable[..., Any], *args: Any, op: str = op) -> Thunk:
            return lambda: s.run(lambda *given: _here().all_reduce(op, fn(*given)), args=args)

        entries: dict[str, Thunk] = {
            "scalar i+1": reduced(lambda v: v, scalar),
            "vector [i+1, 10(i+1)]": reduced(lambda v: v, vector),
            "int32 scalar i+1": reduced(lambda v: v, whole),
            "dict/list/tuple": reduced(lambda a, b: {"a": a, "b": [b, (a * 2,)]}, scalar, vector),
            "list": reduced(lambda a, b: [a, b], scalar, vector),
            "tuple": reduced(lambda a, b: (a, b), scalar, vector),
            "empty list": reduced(lambda _: [], scalar),
            "python float 2.0": reduced(lambda _: 2.0, scalar),
            "python list [1.0, 2.0]": reduced(lambda _: [1.0, 2.0], scalar),
            "uneven shapes": reduced(lambda v: v, uneven),
            "enum": lambda o=op: s.run(lambda v: _here().all_reduce(distribute.ReduceOp[o], v), args=(scalar,)),
            "lower case string": lambda o=op: s.run(lambda v: _here().all_reduce(o.lower(), v), args=(scalar,)),
        }
        if select.engine().name == "torch":
            name = "value and gradient of loss_r=(r+1)*all_reduce(v*v), v=r+1"
            entries[name] = lambda o=op: s.run(_reduce_gradient, args=(o, scalar))
        thunks |= {f"{op}/{name}": thunk for name, thunk in entries.items()}
    options = distribute.experimental.CommunicationOptions(bytes_per_pack=1024)
    return thunks | {
        "all_reduce_with_options": lambda: s.run(
            lambda v: _here().all_reduce("SUM", v, options=options), args=(scalar,)
        ),
        "all_reduce_bad_op": lambda: s.run(lambda v: _here().all_reduce("MAX", v), args=(scalar,)),
        "all_reduce_in_default_context_SUM": lambda: _here().all_reduce("SUM", _tensor(3.0)),
        "all_reduce_in_default_context_MEAN": lambda: _here().all_reduce("MEAN", _tensor(3.0)),
    }


def _reduce_gradient(op: str, v: Any) -> Any:
    import torch

    leaf = v.clone().requires_grad_()
    reduced = _here().all_reduce(op, leaf * leaf)
    return reduced, torch.autograd.grad(reduced * (_id() + 1), leaf)[0]


def local_results(replicas: int) -> dict[str, Thunk]:
    s = _mirrored(replicas)
    pr = _per_replica(s, [1.0, 2.0])

    thunks: dict[str, Thunk] = {
        "return_python_type": lambda: type(s.experimental_local_results(pr)).__name__,
        "PerReplica_isinstance_DistributedValues": lambda: isinstance(pr, distribute.DistributedValues),
        "tensor": lambda: s.experimental_local_results(_tensor([1.0, 2.0])),
        "python_float": lambda: s.experimental_local_results(1.0),
        "None": lambda: s.experimental_local_results(None),
        "PerReplica_indexing": lambda: pr[0],
        "PerReplica_len": lambda: len(pr),
        "PerReplica_add": lambda: pr + 1.0,
        "PerReplica_numpy": lambda: pr.numpy() + 0,
        "default_strategy_tensor": lambda: distribute.get_strategy().experimental_local_results(_tensor(1.0)),
    }
    if _together():
        thunks |= {
            "PerReplica": lambda: s.experimental_local_results(pr),
            "dict": lambda: s.experimental_local_results({"a": pr}),
            "list": lambda: s.experimental_local_results([pr, 1.0]),
            "result_of_run_returning_dict": lambda: s.experimental_local_results(s.run(lambda: {"a": _id()})),
            "PerReplica.values": lambda: list(pr.values),
        }
    return thunks


def values_from_function(replicas: int) -> dict[str, Thunk]:
    s = _mirrored(replicas)
    make = s.experimental_distribute_values_from_function

    def made(fn: Callable[[Any, int], Any]) -> Thunk:
        return lambda: make(lambda context: fn(context, context.replica_id_in_sync_group))

    return {
        "replica_id": made(lambda _, n: n),
        "tensor": made(lambda _, n: _tensor([float(n)])),
        "num_replicas": made(lambda context, _: context.num_replicas_in_sync),
        "context_type": made(lambda context, _: type(context).__name__),
        "dict": made(lambda _, n: {"a": _tensor(n), "b": f"x{n}"}),
        "list": made(lambda _, n: [n, 5]),
        "numpy": made(lambda _, n: np.float32([n])),
        "None": made(lambda _, __: None),
        "shapes_may_differ": made(lambda _, n: _tensor([0.0] * (n + 1))),
        "used_in_run": lambda: s.run(lambda x: x * 2, args=(made(lambda _, n: _tensor(float(n)))(),)),
        "in_replica_context": lambda: s.run(lambda: make(lambda _: 1)),
        "in_scope": lambda: _in_scope(s, made(lambda _, __: _tensor(1.0))),
    }


def one_device(_: int) -> dict[str, Thunk]:
    device = select.engine().all_devices()[-1]
    s = distribute.OneDeviceStrategy(device)
    v = _tensor([1.0, 3.0])
    thunks: dict[str, Thunk] = {
        f"reduce_{op}_vector_axis_{axis}": lambda o=op, a=axis: s.reduce(o, v, axis=a)
        for op in ("SUM", "MEAN")
        for axis in (None, 0)
    }
    return thunks | {
        "num_replicas_in_sync": lambda: s.num_replicas_in_sync,
        "run_replica_id": lambda: s.run(_id),
        "gather": lambda: s.gather(_tensor([1.0, 2.0]), axis=0),
        "all_reduce": lambda: s.run(lambda: _here().all_reduce("SUM", _tensor(2.0))),
        "all_gather": lambda: s.run(lambda: _here().all_gather(_tensor([2.0]), axis=0)),
        "values_from_function": lambda: s.experimental_distribute_values_from_function(
            lambda context: context.replica_id_in_sync_group
        ),
        "local_results": lambda: s.experimental_local_results(_tensor(1.0)),
        "ctx_in_scope": lambda: _in_scope(s, _context),
        "ctx_in_run": lambda: s.run(lambda: json.dumps(_context())),
        "extended/worker_devices": lambda: s.extended.worker_devices,
        "extended/parameter_devices": lambda: s.extended.parameter_devices,
        "extended/experimental_require_static_shapes": lambda: s.extended.experimental_require_static_shapes,
        "extended/_num_replicas_in_sync": lambda: s.num_replicas_in_sync,
    }


def contexts_(replicas: int) -> dict[str, Thunk]:
    s = _mirrored(replicas)
    default = distribute.get_strategy()
    variable = _variable(1.0)

    def in_update() -> Any:
        seen: list[Any] = []
        _in_scope(s, lambda: s.extended.update(variable, lambda _: seen.append(_context())))
        return seen[:1]

    def in_values() -> Any:
        seen: list[Any] = []
        s.experimental_distribute_values_from_function(lambda _: seen.append(_context()))
        return seen[:1]

    def other_thread() -> Any:
        seen: list[Any] = []
        with s.scope():
            thread = threading.Thread(target=lambda: seen.append(_context()))
            thread.start()
            thread.join()
        return seen

    def set_strategy() -> Any:
        distribute.experimental_set_strategy(s)
        inside = _context()
        distribute.experimental_set_strategy(None)
        return [inside, _context()]

    def scope_as() -> Any:
        with s.scope() as entered:
            return entered is s

    thunks: dict[str, Thunk] = {
        "default": _context,
        "in_scope": lambda: _in_scope(s, _context),
        "in_run": lambda: s.run(lambda: json.dumps(_context())),
        "in_run_called_inside_scope": lambda: _in_scope(s, lambda: s.run(lambda: json.dumps(_context()))),
        "in_merge_call": lambda: s.run(lambda: _here().merge_call(lambda _: json.dumps(_context()))),
        "in_extended_update_ctx": in_update,
        "in_values_from_function": in_values,
        "get_strategy_is_s_in_scope": lambda: _in_scope(s, lambda: distribute.get_strategy() is s),
        "after_scope_has_strategy": distribute.has_strategy,
        "scope_as_value": scope_as,
        "scope_reentrant_same_strategy": lambda: _in_scope(s, lambda: _in_scope(s, _context)),
        "other_thread_while_scope_is_open": other_thread,
        "experimental_set_strategy": set_strategy,
    }
    of_default: dict[str, Thunk] = {
        "num_replicas_in_sync": lambda: default.num_replicas_in_sync,
        "run": lambda: default.run(lambda x: x + 1, args=(_tensor(1.0),)),
        "replica_id_in_run": lambda: default.run(_id),
        "reduce_SUM_axis_None": lambda: default.reduce("SUM", _tensor([1.0, 2.0]), axis=None),
        "reduce_MEAN_axis_0": lambda: default.reduce("MEAN", _tensor([1.0, 2.0]), axis=0),
        "gather": lambda: default.gather(_tensor([1.0]), axis=0),
        "scope_ctx": lambda: _in_scope(default, _context),
        "values_from_function": lambda: default.experimental_distribute_values_from_function(
            lambda context: context.replica_id_in_sync_group
        ),
        "merge_call": lambda: _here().merge_call(
            lambda st, x: [st is default, distribute.in_cross_replica_context(), x], args=(1,)
        ),
        "extended/worker_devices": lambda: default.extended.worker_devices,
        "extended/parameter_devices": lambda: default.extended.parameter_devices,
        "extended/experimental_require_static_shapes": lambda: default.extended.experimental_require_static_shapes,
        "extended/_num_replicas_in_sync": lambda: default.num_replicas_in_sync,
    }
    return thunks | {f"default_strategy/{name}": thunk for name, thunk in of_default.items()}


def errors(replicas: int) -> dict[str, Thunk]:
    s, s2 = _mirrored(replicas), _mirrored(replicas)
    default = distribute.get_strategy()
    constant = _tensor(1.0)
    anything: Any = s

    def out_of_order() -> None:
        a, b = s.scope(), s.scope()
        a.__enter__()
        b.__enter__()
        a.__exit__(None, None, None)
        b.__exit__(None, None, None)

    def ops(name: str) -> Any:
        q = distribute.MirroredStrategy(
            [f"CPU:{n}" for n in range(replicas)], cross_device_ops=getattr(distribute, name)()
        )
        return q.reduce("SUM", _per_replica(q, [1.0, 2.0]), axis=None)

    def devices(names: Any) -> Thunk:
        return lambda: list(distribute.MirroredStrategy(names).extended.worker_devices)

    thunks: dict[str, Thunk] = {
        "nested_run_same_strategy": lambda: s.run(lambda: s.run(lambda: constant)),
        "nested_run_other_strategy": lambda: s.run(lambda: s2.run(lambda: constant)),
        "scope_of_other_strategy_inside_scope": lambda: _in_scope(s, lambda: _in_scope(s2, lambda: 1)),
        "scope_of_same_strategy_inside_run": lambda: s.run(lambda: _in_scope(s, lambda: 1)),
        "scope_of_other_strategy_inside_run": lambda: s.run(lambda: _in_scope(s2, lambda: 1)),
        "run_of_other_strategy_inside_scope": lambda: _in_scope(s, lambda: s2.run(lambda: constant)),
        "reduce_of_other_strategy_inside_scope": lambda: _in_scope(s, lambda: s2.reduce("SUM", constant, axis=None)),
        "default_strategy_scope_inside_scope": lambda: _in_scope(s, lambda: _in_scope(default, _context)),
        "scope_exit_out_of_order": out_of_order,
        "ctx_after_out_of_order_exit": _context,
        "exit_without_enter": lambda: s.scope().__exit__(None, None, None),
        "ctx_after": _context,
        "run_args_not_tuple": lambda: anything.run(lambda a: a, args=constant),
        "run_args_list": lambda: s.run(lambda a: a, args=[constant]),
        "run_kwargs_not_dict": lambda: anything.run(lambda: 1, kwargs=3),
        "run_not_callable": lambda: anything.run(3),
        "merge_call_in_cross_replica": lambda: _in_scope(s, lambda: _here().merge_call(lambda _: 1)),
        "all_reduce_in_cross_replica": lambda: _in_scope(s, lambda: _here().all_reduce("SUM", 1.0)),
        "merge_call_inside_merge_call": lambda: s.run(
            lambda: _here().merge_call(lambda _: _here().merge_call(lambda _: 1))
        ),
        "merge_call_on_only_one_replica": lambda: s.run(lambda: _here().merge_call(lambda _: 1) if _id() == 0 else 1),
        "all_reduce_on_only_one_replica": lambda: s.run(
            lambda: _here().all_reduce("SUM", constant) if _id() == 0 else constant
        ),
        "different_merge_fns": lambda: s.run(lambda: _here().merge_call([lambda _: 1, lambda _: 1][_id()])),
        "MirroredStrategy(devices=[])": devices([]),
        "MirroredStrategy(duplicate devices)": devices(["CPU:0", "CPU:0"]),
        "MirroredStrategy(CPU:0 + /cpu:0)": devices(["CPU:0", "/cpu:0"]),
        "MirroredStrategy(device that does not exist)": devices(["CPU:0", "CPU:9"]),
        "MirroredStrategy(GPU:0) without a GPU": devices(["GPU:7"]),
        "MirroredStrategy('CPU:0') a string": devices("CPU:0"),
        "MirroredStrategy(cross_device_ops='x')": lambda: distribute.MirroredStrategy(
            cross_device_ops="x"  # type: ignore[arg-type]
        ),
        "tf.distribute.get_strategy() in run": lambda: s.run(lambda: type(distribute.get_strategy()).__name__),
        "ReduceOp_members": lambda: [member.name for member in distribute.ReduceOp],
        "ReduceOp('bad')": lambda: distribute.ReduceOp("bad"),
        "strategy_public_names": lambda: sorted(name for name in dir(s) if not name.startswith("_")),
    }
    names = ("ReductionToOneDevice", "HierarchicalCopyAllReduce", "NcclAllReduce")
    return thunks | {f"cross_device_ops_kinds/{name}": lambda n=name: ops(n) for name in names}


SECTIONS: dict[str, Callable[[int], dict[str, Thunk]]] = {
    "run": run,
    "reduce": reduce,
    "gather": gather,
    "all_reduce": all_reduce,
    "local_results": local_results,
    "values_from_function": values_from_function,
    "one_device": one_device,
    "contexts": contexts_,
    "errors": errors,
}
