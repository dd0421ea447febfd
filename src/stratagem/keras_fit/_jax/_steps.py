# SPDX-License-Identifier: Apache-2.0
"""What stands behind `fit`, `evaluate`, `predict` and `*_on_batch`: a compiled function for each kind of step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from stratagem.engines._progress import PROGRESS
from stratagem.engines.jax._in_flight import InFlight
from stratagem.engines.jax._mesh import AXIS, Replicas
from stratagem.engines.jax._weight_gradients import computed_in_order
from stratagem.keras_fit._jax import _kind, _replica_steps, _trace
from stratagem.keras_fit._jax._losses import WholeBatchNeeded
from stratagem.keras_fit._jax._placement import place_batch, place_state
from stratagem.keras_fit._rows import num_rows


class _Placed(tuple[Any, ...]):
    """A state that a step returned, so that nobody has to look where it lies."""

    __slots__ = ()


class Steps:
    """The steps of one kind of a compiled, built model.

    Args:
        model: Compiled and built.
        replicas: Those that it trains on.
        kind: "train", "test" or "predict".
        agree: Called with a description of the first step, before it is compiled.
    """

    def __init__(
        self, model: Any, replicas: Replicas, kind: str, agree: Callable[[dict[str, str]], None] | None = None
    ) -> None:
        self._model = model
        self._replicas = replicas
        self._kind = kind
        self._agree = agree
        self._in_flight = InFlight(replicas.on_cpu)
        self._global = self._global_step()
        divides = replicas.size > 1 and not self._eager and not self._gathers and _kind.divides_by_rows(model, kind)
        self._replica = replica_step(model, replicas, kind) if divides else None

    @property
    def _eager(self) -> bool:
        return self._model.run_eagerly or not self._model.jit_compile

    @property
    def _gathers(self) -> bool:
        """Whether every process gets the outputs of all: of outputs that are divided it would have a part only."""
        return self._kind == "predict" and not self._replicas.replicated.is_fully_addressable

    def __call__(self, state: Any, data: Any) -> tuple[Any, Any]:
        """One step on one global batch: Keras's logs or outputs, and the new state."""
        if self._agree is not None:
            self._agree(_description(self._model, data))
            self._agree = None
        replicas = self._replicas
        state = tuple(state) if isinstance(state, _Placed) else place_state(replicas, state)
        divides = num_rows(data) % replicas.size == 0
        data = place_batch(replicas, data, divides)
        PROGRESS.step += 1
        result, state = self._run(divides, lambda step: step(state, data))
        self._in_flight.note(result)
        return result, _Placed(state)

    def lower(self, state: Any, data: Any) -> Any:
        """The step for batches like `data`, lowered; nothing is computed, and no value leaves its place."""
        replicas = self._replicas
        state, data = _shapes(state, replicas.replicated), _shapes(data, replicas.sharded)
        return self._run(True, lambda step: step.lower(state, data))

    def _run(self, divides: bool, use: Callable[[Any], Any]) -> Any:
        """`use` the step for batches that divide evenly, or do not."""
        if divides and self._replica is not None:
            try:
                return use(self._replica)
            except WholeBatchNeeded:
                self._replica = None
                # What the step that was given up left for its loss.
                self._model._losses_override = []
        return use(self._global)

    def _global_step(self) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Keras's own step of one device on the whole batch; XLA divides the work, uneven batches too."""
        model, replicas, kind = self._model, self._replicas, self._kind

        def step(state: Any, data: Any) -> tuple[Any, Any]:
            if replicas.size > 1 and not self._eager:
                data = jax.lax.with_sharding_constraint(data, replicas.sharded)
            with _trace.tracing(_trace.GlobalStep(replicas.size, num_rows(data))):
                result, new_state = getattr(model, f"{kind}_step")(state, data)
            return result, (state[0], new_state) if kind == "predict" else new_state

        if not self._eager:
            results = replicas.replicated if self._gathers else None
            return jax.jit(step, donate_argnums=0, out_shardings=(results, replicas.replicated))
        return lambda state, data: _replicated(replicas, step(state, data))


def replica_step(model: Any, replicas: Replicas, kind: str) -> Any:
    """The jitted step that every replica runs on its own rows, for batches that divide evenly.

    Returns:
        A function of `(state, data)`, to be called or lowered; the state is donated.
    """
    body = partial(computed_in_order(replicas)(getattr(_replica_steps, kind)), model, replicas.size)
    mapped = jax.shard_map(
        body,
        mesh=replicas.mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
        out_specs=(PartitionSpec(AXIS) if kind == "predict" else PartitionSpec(), PartitionSpec()),
        check_vma=False,  # else jax adds sums of its own to gradients by replicated values
    )
    return jax.jit(mapped, donate_argnums=0)


def lower_train_step(model: Any, replicas: Replicas, state: Any, data: Any) -> Any:
    """The training step for a global batch like `data`, lowered for `replicas`, whose devices need not be there.

    Args:
        model: Compiled and built.
        replicas: Those to lower for.
        state: The model's, as Keras's steps get it, which takes it out of the variables for as long as they run.
        data: A batch whose rows divide evenly, as Keras's steps get it; only shapes and dtypes count.
    """
    return Steps(model, replicas, "train").lower(state, data)


def _description(model: Any, data: Any) -> dict[str, str]:
    """What the compiled steps of two processes must have in common, or each would wait for another thing."""
    optimizer = getattr(model, "optimizer", None)
    shapes = [f"{value.dtype}{list(value.shape)}" for value in jax.tree.leaves(data)]
    return {
        "the shapes of the batch": ", ".join(shapes),
        "the model's variables": ", ".join(f"{one.path} {one.dtype}{list(one.shape)}" for one in model.variables),
        "the optimizer": type(optimizer).__name__,
        "steps_per_execution": str(model.steps_per_execution),
    }


def _replicated(replicas: Replicas, result: tuple[Any, Any]) -> tuple[Any, Any]:
    return result[0], place_state(replicas, result[1])


def _shapes(values: Any, sharding: Any) -> Any:
    def shape(value: Any) -> jax.ShapeDtypeStruct:
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)  # float32 of float64, as when it is put on a device
        return jax.ShapeDtypeStruct(value.shape, dtype, sharding=sharding)

    return jax.tree.map(shape, values)
