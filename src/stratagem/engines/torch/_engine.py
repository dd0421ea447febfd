# SPDX-License-Identifier: Apache-2.0
"""The engine contract on PyTorch."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import torch

from stratagem._core import env, state
from stratagem._core.cluster import Cluster
from stratagem._core.enums import Reduction
from stratagem._core.options import CommunicationOptions
from stratagem.engines._handing_out import Said
from stratagem.engines._stop import Alone, StopAgreement
from stratagem.engines.base import Capabilities, Engine, Tensor
from stratagem.engines.torch import _autograd, _connection, _devices, _memory
from stratagem.engines.torch._connection import Connection
from stratagem.engines.torch._local import LocalTransport
from stratagem.engines.torch._modules import Modules
from stratagem.engines.torch._random_state import RunRandomState
from stratagem.engines.torch._transport import Transport
from stratagem.errors import ArgumentTypeError, LaunchError

T = TypeVar("T")


class TorchEngine(Engine):
    """One process per replica; this process's replica has the number that the launcher gave it."""

    name = "torch"
    capabilities = Capabilities(many_replicas_per_process=False, traced_functions=False)

    def __init__(self) -> None:
        self._alone = LocalTransport()
        self._joined: Connection | None = None
        self._in_cluster: tuple[Cluster, torch.device] | None = None
        self._transport: Transport = self._alone
        self._modules: Modules | None = None
        self._device = torch.device("cpu")
        self._connected_devices: tuple[str, ...] | None = None
        self._run_random_state: RunRandomState | None = None
        self._options = CommunicationOptions()

    @property
    def transport(self) -> Transport:
        """What carries this replica's collectives."""
        return self._transport

    @property
    def device(self) -> torch.device:
        """Where this replica computes."""
        return self._device

    def local_devices(self) -> tuple[str, ...]:
        here = _devices.default_devices()
        if self._in_cluster is None:
            return here
        kind = here[0].partition(":")[0]
        return tuple(f"{kind}:{index}" for index in range(self._in_cluster[0].world_size))

    def all_devices(self) -> tuple[str, ...]:
        return _devices.all_devices()

    def communicate_by(self, options: CommunicationOptions) -> None:
        self._options = options

    def connect(self, devices: Sequence[str]) -> None:
        if self._connected_devices == tuple(devices):
            return
        state.mark_connected()
        if env.fast_paths():
            _memory.keep_freed_memory()
        if len(devices) == 1:
            self._transport = self._alone
        else:
            self._transport = self._join(devices)
        # In a cluster the devices of all hosts are counted through, and none of torch's has such a number.
        here = _devices.torch_device(devices[self._transport.rank])
        self._device = here if self._in_cluster is None else self._in_cluster[1]
        if self._transport.world_size > 1 and (self._modules is None or self._modules.transport is not self._transport):
            self._modules = Modules(self._transport)
        self._connected_devices = tuple(devices)
        alone = self._transport.world_size == 1
        self._run_random_state = None if alone else RunRandomState(self._transport.rank, self._device)

    def join(self, cluster: Cluster) -> None:
        if self._in_cluster is not None:
            return
        mine = cluster.devices_of_task(_devices.default_devices())[cluster.process]
        self._in_cluster = (cluster, _devices.torch_device(mine))
        self._joined = _connection.connect_cluster(cluster, self._in_cluster[1], self._options)
        atexit.register(self.disconnect)

    def _join(self, devices: Sequence[str]) -> Transport:
        if self._joined is not None:
            return self._joined.transport
        job = env.job()
        if job is None or job.world_size != len(devices):
            raise LaunchError(
                f"{len(devices)} devices need as many processes with the torch engine; "
                f"this one is {'alone' if job is None else f'one of {job.world_size}'}",
                fix=f"start the script with: stratagem run --replicas {len(devices)} script.py",
            )
        self._joined = _connection.connect(job, devices, self._options)
        atexit.register(self.disconnect)
        return self._joined.transport

    def disconnect(self) -> None:
        if self._joined is not None:
            _connection.disconnect(self._joined)
            atexit.unregister(self.disconnect)
            state.mark_disconnected()
        if self._modules is not None:
            self._modules.close()
        self._modules = None
        self._joined = self._connected_devices = self._run_random_state = None
        self._transport = self._alone

    @property
    def num_replicas(self) -> int:
        return self._transport.world_size

    @property
    def local_replica_ids(self) -> tuple[int, ...]:
        return (self._transport.rank,)

    @property
    def rank(self) -> int:
        return self._transport.rank

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, (torch.Tensor, keras.Variable))

    def to_tensor(self, value: object) -> Tensor:
        if isinstance(value, keras.Variable):
            return value.value
        if isinstance(value, torch.Tensor):
            return value.to(self._device)
        if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
            # TensorFlow's defaults for Python numbers.
            dtype = {bool: torch.bool, int: torch.int32, float: torch.float32, complex: torch.complex64}[type(value)]
            return torch.tensor(value, dtype=dtype, device=self._device)
        array = np.asarray(value)
        if array.dtype == object or array.dtype.kind in "USMm":
            raise ArgumentTypeError(
                f"{type(value).__name__} {value!r:.60} is not a number, array or tensor",
                fix="return tensors from the replica function",
            )
        if not array.flags.writeable:  # as those of tf.data are; a tensor is written to, so it can't share their memory
            return torch.tensor(array, device=self._device)
        return torch.as_tensor(array, device=self._device)

    def fetched(self, value: object) -> Tensor:
        if self._device.type != "cuda" or not isinstance(value, (np.ndarray, torch.Tensor)):
            return self.to_tensor(value)
        host = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        # From pinned memory the copy needs no CPU. It is put before the steps of the device's stream that come after
        # it, and torch keeps the pinned memory until it is done.
        return host.to(self._device) if host.is_cuda else host.pin_memory().to(self._device, non_blocking=True)

    def run_on_replicas(
        self, fn: Callable[..., T], args: Sequence[tuple[Any, ...]], kwargs: Sequence[dict[str, Any]]
    ) -> tuple[T, ...]:
        outer = self._transport.begin_run()
        try:
            if self._modules is None or self._run_random_state is None:
                return (fn(*args[0], **kwargs[0]),)
            with self._modules.in_run((args[0], kwargs[0])), self._run_random_state:
                return (fn(*args[0], **kwargs[0]),)
        finally:
            self._transport.end_run(outer)

    def compiled(self, fn: Callable[..., Any], jit_compile: bool | None) -> Callable[..., Any]:
        return torch.compile(fn) if jit_compile else fn

    def all_reduce(self, op: Reduction, values: Sequence[Sequence[Tensor]]) -> tuple[tuple[Tensor, ...], ...]:
        if self._modules is not None and op is Reduction.SUM:
            self._modules.note_all_reduce(values[0])
            self.refuse_summed(values[0])
        return (_autograd.all_reduce(self._transport, op, values[0]),)

    def refuse_summed(self, gradients: Sequence[Tensor]) -> None:
        """Raise ArgumentError if one of `gradients`, which are about to be summed, was summed by `backward()`."""
        if self._modules is not None:
            self._modules.refuse_summed(gradients)

    def all_gather(self, values: Sequence[Sequence[Tensor]], axis: int) -> tuple[tuple[Tensor, ...], ...]:
        return (_autograd.all_gather(self._transport, values[0], axis),)

    def all_gather_objects(self, values: Sequence[object]) -> tuple[Any, ...]:
        return tuple(self._transport.all_gather_object(values[0]))

    def take_object(self, value: object, source: int, what: str) -> Any:
        if self._transport.world_size == 1:
            return value
        with self._transport.from_source(source, value, [], what) as (taken, _):
            return taken

    def _hand_out(
        self, pickled: Iterator[tuple[Said, bytes]] | None, source: int, what: str, depth: int
    ) -> Iterator[Said]:
        said = self._transport.hand_out(pickled, source, what, depth) if depth else None
        return super()._hand_out(pickled, source, what, depth) if said is None else said

    def broadcast(self, values: Sequence[Sequence[Tensor]], source: int = 0) -> tuple[tuple[Tensor, ...], ...]:
        return (tuple(self._transport.broadcast(values[0], source)),)

    def barrier(self, name: str) -> None:
        self._transport.barrier(name)

    def stop_agreement(self) -> StopAgreement:
        return Alone() if self._joined is None else self._joined.pulse

    def value_and_grad(
        self, fn: Callable[..., Any], variables: Sequence[Any], has_aux: bool = False
    ) -> Callable[..., tuple[Any, list[Tensor | None]]]:
        def call(*args: Any, **kwargs: Any) -> tuple[Any, list[Tensor | None]]:
            with torch.enable_grad():
                out = fn(*args, **kwargs)
                loss = out[0] if has_aux else out
                gradients = torch.autograd.grad(loss, [variable.value for variable in variables], allow_unused=True)
            # The graph has been used up; what stays is the number.
            return (loss.detach(), *out[1:]) if has_aux else loss.detach(), list(gradients)

        return call

    def snapshot(self, variables: Sequence[Any]) -> list[Tensor]:
        return [variable.value.detach().clone() for variable in variables]

    def restore(self, variables: Sequence[Any], saved: Sequence[Tensor]) -> None:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)
