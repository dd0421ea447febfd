# SPDX-License-Identifier: Apache-2.0
"""The engine contract on JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np

from stratagem._core import env, nest, state
from stratagem._core.cluster import Cluster
from stratagem._core.enums import Reduction
from stratagem._core.values import DistributedValues
from stratagem.engines._header import Header, callers_line, check_agreement
from stratagem.engines._operands import check_axis, check_reducible
from stratagem.engines._stop import Alone, StopAgreement
from stratagem.engines.base import Capabilities, Engine, ReplicaEntry, Tensor
from stratagem.engines.jax import _differentiation, _job, _peers, _tracing
from stratagem.engines.jax._collectives import Collectives
from stratagem.engines.jax._devices import Devices
from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._peers import Peers
from stratagem.engines.jax._run import Runner
from stratagem.engines.jax._scopes import innermost
from stratagem.engines.jax._stacks import stacked
from stratagem.engines.jax._untraceable import ReadInTraceError
from stratagem.errors import ArgumentTypeError

T = TypeVar("T")

# Keras and jax call us from their own code.
_LIBRARIES = tuple(folder + os.sep for folder in (*keras.__path__, *jax.__path__))


class JaxEngine(Engine):
    """One process drives all replicas of its host, each on a device of its own."""

    name = "jax"
    capabilities = Capabilities(many_replicas_per_process=True, traced_functions=True)

    def __init__(self) -> None:
        self._peers: Peers | None = None
        self._present: Devices | None = None
        self._devices: tuple[str, ...] | None = None
        self._connected: tuple[Replicas, Collectives] | None = None
        self._runner = Runner()
        self._made: dict[tuple[str, ...], tuple[Replicas, Collectives]] = {}

    @property
    def replicas(self) -> Replicas:
        """The replicas' mesh; before `connect`, that of one replica on this process's first device."""
        return self._mesh()[0]

    def local_devices(self) -> tuple[str, ...]:
        return self._found().default()

    def all_devices(self) -> tuple[str, ...]:
        return self._found().all()

    def device_coordinates(self, name: str) -> tuple[int, int, int, int] | None:
        device: Any = self._found().find(name)
        return (*device.coords, device.core_on_chip) if device.platform == "tpu" else None

    def _found(self) -> Devices:
        if self._present is None:
            job = env.job()
            if job is not None and job.world_size > 1:
                self._peers = _peers.join(job)
            self._present = Devices(sharers=1 if job is None else job.world_size)
        return self._present

    def join(self, cluster: Cluster) -> None:
        if self._peers is not None:
            return
        if cluster.world_size > 1:
            self._peers = _peers.join(cluster)
        self._present = Devices(sharers=cluster.num_local_tasks)

    def connect(self, devices: Sequence[str]) -> None:
        wanted = tuple(devices)
        if self._devices == wanted:
            return
        mesh = self._mesh_on(wanted)
        if self._peers is not None:
            _job.check(self._peers, wanted, mesh[0])
            _job.try_out(self._peers, mesh[1], len(mesh[0].local_ids))
        self._connected, self._devices = mesh, wanted
        state.mark_connected()

    def disconnect(self) -> None:
        self._connected = self._devices = None
        state.mark_disconnected()

    def _mesh(self) -> tuple[Replicas, Collectives]:
        if self._connected is not None:
            return self._connected
        present = self._found()
        first = next(name for name in present.default() if present.find(name).process_index == jax.process_index())
        return self._mesh_on((first,))

    def _mesh_on(self, devices: tuple[str, ...]) -> tuple[Replicas, Collectives]:
        if devices not in self._made:
            replicas = Replicas.on([self._found().find(name) for name in devices])
            self._made[devices] = (replicas, Collectives(replicas))
        return self._made[devices]

    @property
    def num_replicas(self) -> int:
        return 1 if self._connected is None else self._connected[0].size

    @property
    def local_replica_ids(self) -> tuple[int, ...]:
        if _tracing.in_replica_trace():
            return (_tracing.replica_id(),)  # pyright: ignore[reportReturnType] - a traced int of whoever runs it
        return (0,) if self._connected is None else self._connected[0].local_ids

    @property
    def rank(self) -> int:
        return 0 if self._peers is None else self._peers.rank

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, (jax.Array, keras.Variable))

    def opened(self, value: Any) -> tuple[Any, Callable[[Any], Any]]:
        leaves = nest.flatten(value)
        if all(leaf is None or jax.tree_util.all_leaves([leaf]) for leaf in leaves):
            return super().opened(value)
        parts, tree = jax.tree.flatten(value, is_leaf=lambda part: part is None)
        return parts, functools.partial(jax.tree.unflatten, tree)

    def to_tensor(self, value: object) -> Tensor:
        if isinstance(value, keras.Variable):
            return value.value
        if isinstance(value, jax.Array):
            return value
        if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
            # TensorFlow's defaults for Python numbers.
            dtype = {bool: jnp.bool_, int: jnp.int32, float: jnp.float32, complex: jnp.complex64}[type(value)]
            return jnp.asarray(value, dtype)
        array = np.asarray(value)
        if array.dtype == object or array.dtype.kind in "USMm":
            raise ArgumentTypeError(
                f"{type(value).__name__} {value!r:.60} is not a number, array or tensor",
                fix="return tensors from the replica function",
            )
        # jax would make 32 bits of 64.
        with jax.enable_x64(True):
            return jnp.asarray(array)

    def run_on_replicas(
        self, fn: Callable[..., T], args: Sequence[tuple[Any, ...]], kwargs: Sequence[dict[str, Any]]
    ) -> tuple[T, ...]:
        def call(local: int) -> T:
            with jax.default_device(devices[local]):
                return fn(*args[local], **kwargs[local])

        replicas = self.replicas
        devices = [replicas.devices[replica] for replica in replicas.local_ids]
        if len(args) == 1:
            return (call(0),)
        # Each in a thread of its own, as replicas can wait for one another.
        with ThreadPoolExecutor(len(args), thread_name_prefix="replica") as pool:
            futures = [pool.submit(call, local) for local in range(len(args))]
        return tuple(future.result() for future in futures)

    @property
    def is_tracing(self) -> bool:
        return _tracing.in_replica_trace()

    def refuse_reading_in_trace(self) -> None:
        if innermost() is not None:
            raise ReadInTraceError

    def run_traced(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], inside: ReplicaEntry
    ) -> Any:
        with self.naming_the_lost("strategy.run"):
            from_chief = None if self.others is None else self._from_chief
            return self._runner.run(self.replicas, fn, args, kwargs, inside, from_chief)

    def _from_chief(self, arrays: Sequence[Any]) -> Sequence[Any]:
        plain = [_plain(array) for array in arrays]
        taken = self.broadcast([plain] * len(self.local_replica_ids))[0]
        return [_as(array, like) for array, like in zip(taken, arrays, strict=True)]

    def compiled(self, fn: Callable[..., Any], jit_compile: bool | None) -> Callable[..., Any]:
        return fn if jit_compile is False else self._runner.compiled(lambda: self.replicas, fn)

    def per_replica(self, values: DistributedValues) -> DistributedValues:
        return stacked(values, self.replicas)

    def all_reduce(self, op: Reduction, values: Sequence[Sequence[Tensor]]) -> tuple[tuple[Tensor, ...], ...]:
        if self.is_tracing:
            return (_tracing.all_reduce(op, values[0]),)
        for tensor in values[0]:
            check_reducible(op, tensor)
        self._agree(f"all_reduce({op.name})", values)
        return self._on_each(lambda programs: programs.all_reduce(op, values))

    def all_gather(self, values: Sequence[Sequence[Tensor]], axis: int) -> tuple[tuple[Tensor, ...], ...]:
        for tensor in values[0]:
            check_axis(tensor, axis)
        if self.is_tracing:
            return (_tracing.all_gather(values[0], axis),)
        lengths = self._agree(f"all_gather(axis={axis})", values, free_axis=axis)
        return self._on_each(lambda programs: programs.all_gather(values, axis, lengths))

    def all_gather_objects(self, values: Sequence[object]) -> tuple[Any, ...]:
        headers = [Header("all_gather_object", details=value) for value in values]
        return tuple(header.details for header in self._checked(headers))

    def broadcast(self, values: Sequence[Sequence[Tensor]], source: int = 0) -> tuple[tuple[Tensor, ...], ...]:
        if self.is_tracing:
            return (_tracing.broadcast(values[0], source),)
        self._agree(f"broadcast(source={source})", values)
        return self._on_each(lambda programs: programs.broadcast(values, source))

    def said_by_all(self, doing: str, mine: object) -> list[Any]:
        """What each process of the job says, by rank: one entry where there is one process. `doing` names the call."""
        return [mine] if self._peers is None else self._peers.exchange(doing, mine)

    def barrier(self, name: str) -> None:
        self._checked([Header(f"barrier({name!r})")] * len(self.local_replica_ids))

    def naming_the_lost(self, what: str) -> AbstractContextManager[None]:
        """Around code that waits for other processes in compiled collectives: errors then say which one was lost.

        Args:
            what: What was waited for, such as "a training step".
        """
        return contextlib.nullcontext() if self.others is None else self.others.naming_the_lost(what)

    def stop_agreement(self) -> StopAgreement:
        return Alone() if self._peers is None else self._peers.pulse

    def value_and_grad(
        self, fn: Callable[..., Any], variables: Sequence[Any], has_aux: bool = False
    ) -> Callable[..., tuple[Any, list[Tensor | None]]]:
        return _differentiation.value_and_grad(fn, variables, has_aux)

    def snapshot(self, variables: Sequence[Any]) -> list[Tensor]:
        return [jnp.copy(variable.value) for variable in variables]

    def restore(self, variables: Sequence[Any], saved: Sequence[Tensor]) -> None:
        for variable, value in zip(variables, saved, strict=True):
            # A training step uses up the array that it is given.
            variable.assign(jnp.copy(value))

    @property
    def others(self) -> Peers | None:
        """The other processes, if this one is connected to them."""
        return None if self._connected is None else self._peers

    def _on_each(self, call: Callable[[Collectives], list[Tensor]]) -> tuple[tuple[Tensor, ...], ...]:
        """What `call` returns, which lies on all replicas' devices, for each local replica."""
        programs = self._mesh()[1]
        if self.others is None:
            results = call(programs)
        else:
            # An error of the devices is only known when they are done.
            with self.naming_the_lost(f"a collective at {callers_line(_LIBRARIES)}"):
                results = jax.block_until_ready(call(programs))
        return (tuple(results),) * len(self.local_replica_ids)

    def _agree(
        self, operation: str, values: Sequence[Sequence[Tensor]], free_axis: int | None = None
    ) -> list[tuple[int, ...]]:
        """Check that all replicas' values fit together; the sizes along `free_axis`, per value and replica."""
        headers = self._checked([Header(operation, _specs(column), free_axis=free_axis) for column in values])
        if free_axis is None:
            return []
        sizes = [[shape[free_axis] for _, shape in header.specs] for header in headers]
        return [tuple(place) for place in zip(*sizes, strict=True)]

    def _checked(self, headers: Sequence[Header]) -> Sequence[Header]:
        """The headers of all replicas, given those of the local ones; raises where they don't agree."""
        first = headers[0]
        if self.others is None and all(header.specs == first.specs for header in headers):
            return headers
        headers = [dataclasses.replace(header, where=callers_line(_LIBRARIES)) for header in headers]
        if self.others is not None:
            said = self.others.exchange(str(headers[0]), headers)
            headers = [header for theirs in said for header in theirs]
        check_agreement(headers)
        return headers


def _specs(column: Sequence[Tensor]) -> tuple[tuple[Any, tuple[int, ...]], ...]:
    return tuple((tensor.dtype, tensor.shape) for tensor in column)


def _plain(array: Any) -> Any:
    return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def _as(plain: Any, like: Any) -> Any:
    if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return plain
    return jax.random.wrap_key_data(plain, impl=jax.random.key_impl(like))
