# SPDX-License-Identifier: Apache-2.0
"""What the jax engine promises beyond numpy's reach: bfloat16, 64 bits, and where values lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._core.enums import Reduction
from stratagem.engines.base import Engine
from tests.contract.promises import Promise

JAX_PROMISES: dict[str, Promise] = {}


def promise(function: Promise) -> Promise:
    """Enter a promise into the table under its name."""
    JAX_PROMISES[function.__name__] = function
    return function


@promise
def half_types_are_summed_in_float32_and_keep_their_dtype(engine: Engine) -> None:
    import jax.numpy as jnp

    others = engine.num_replicas - 1
    for dtype, small in ((jnp.bfloat16, 2.0**-8), (jnp.float16, 2.0**-11)):
        # In the type itself each addition of `small` to 1 would be lost.
        mine = [[jnp.array([1.0 if r == 0 else small, 3.0], dtype)] for r in engine.local_replica_ids]
        total, mean, low, high = (engine.all_reduce(op, mine)[0][0] for op in Reduction)
        assert {total.dtype, mean.dtype, low.dtype, high.dtype} == {jnp.dtype(dtype)}
        exact = jnp.array([1.0 + others * small, 3.0 * engine.num_replicas])
        np.testing.assert_array_equal(np.asarray(total), np.asarray(exact.astype(dtype)))
        np.testing.assert_array_equal(np.asarray(mean), np.asarray((exact / engine.num_replicas).astype(dtype)))
        assert low[0] == (small if others else 1.0)
        assert high[0] == 1.0
    gathered = engine.all_gather([[jnp.ones(r, jnp.bfloat16)] for r in engine.local_replica_ids], axis=0)[0][0]
    assert (gathered.dtype, len(gathered)) == (jnp.bfloat16, sum(range(engine.num_replicas)))


@promise
def a_broadcast_keeps_every_bit(engine: Engine) -> None:
    import jax.numpy as jnp

    last = engine.num_replicas - 1
    for dtype in (np.float32, np.float64, np.float16, np.complex64, np.bool_, np.int8):
        exotic = np.array([-0.0, 1.0]).astype(dtype)

        def make(replica: int, exotic: Any = exotic) -> Any:
            return engine.to_tensor(exotic if replica == last else np.zeros_like(exotic))

        for column in engine.broadcast([[make(replica)] for replica in engine.local_replica_ids], last):
            assert np.asarray(column[0]).tobytes() == exotic.tobytes()
    (nan,) = engine.broadcast([[jnp.float32(np.nan)]] * len(engine.local_replica_ids))[0]
    assert np.isnan(nan)


@promise
def results_lie_on_all_replicas_and_can_be_reduced_again(engine: Engine) -> None:
    import jax
    import jax.numpy as jnp

    ones = engine.all_reduce(Reduction.MEAN, [[jnp.ones((2, 2))]] * len(engine.local_replica_ids))
    (first,) = ones[0]
    assert isinstance(first, jax.Array)
    assert first.is_fully_replicated
    assert len(first.devices()) == engine.num_replicas
    again = engine.all_reduce(Reduction.SUM, ones)[0][0]
    np.testing.assert_array_equal(np.asarray(again), np.full((2, 2), engine.num_replicas))
    gathered = engine.all_gather(again_on_one_device(engine, again), axis=1)[0][0]
    assert gathered.shape == (2, 2 * engine.num_replicas)


def again_on_one_device(engine: Engine, value: Any) -> list[list[Any]]:
    """The value for each local replica, all on this process's last device: it has to travel."""
    import jax

    return [[jax.device_put(np.asarray(value), jax.local_devices()[-1])]] * len(engine.local_replica_ids)


@promise
def results_of_64_bits_come_without_a_setting(engine: Engine) -> None:
    import jax

    assert not jax.config.jax_enable_x64
    values = [[engine.to_tensor(np.array([2**53 + 1]))] for _ in engine.local_replica_ids]
    (total,) = engine.all_reduce(Reduction.SUM, values)[0]
    assert (str(total.dtype), int(total[0])) == ("int64", engine.num_replicas * (2**53 + 1))
    (mean,) = engine.all_reduce(Reduction.MEAN, values)[0]
    assert str(mean.dtype) == "float64"


@promise
def a_snapshot_outlives_what_uses_up_the_variables_array(engine: Engine) -> None:
    import keras

    variable = keras.Variable([1.0, 2.0])
    saved = engine.snapshot([variable])
    for _ in range(2):
        variable.value.delete()  # as a step does that is given the array
        engine.restore([variable], saved)
        assert variable.numpy().tolist() == [1.0, 2.0]


@promise
def a_variable_is_a_tensor_to_the_engine(engine: Engine) -> None:
    import jax
    import keras

    x = keras.Variable([1.0, 2.0])
    assert engine.is_tensor(x)
    assert isinstance(engine.to_tensor(x), jax.Array)


@promise
def replicas_that_do_not_fit_together_are_named(engine: Engine) -> None:
    import jax.numpy as jnp
    import pytest

    from stratagem.errors import StructureMismatchError

    last = engine.num_replicas - 1
    if last == 0:
        return
    values = [[jnp.ones(4 if replica == last else 3)] for replica in engine.local_replica_ids]
    with pytest.raises(StructureMismatchError) as caught:
        engine.all_reduce(Reduction.SUM, values)
    for text in ("in all_reduce(SUM), replica 0 has float32[3] (at jax_promises.py:", f"replica {last} has float32[4]"):
        assert text in str(caught.value)
    engine.barrier("after a refusal")
