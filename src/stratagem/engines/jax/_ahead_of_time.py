# SPDX-License-Identifier: Apache-2.0
"""Compiling a training step for devices that need not be there, and asking the result what it needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from stratagem._core.tpu_slice import Slice
from stratagem.engines import _hlo
from stratagem.engines.compiled_step import CompiledStep, Memory
from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._topology import devices_of

__all__ = ["compile_step"]


def compile_step(topology: str, global_batch: int, lower: Callable[[Replicas], Any]) -> CompiledStep:
    """Compile a step for a TPU slice.

    Args:
        topology: The slice, such as "v5e:2x4".
        global_batch: Rows of one step.
        lower: Lowers the step for the replicas that it is given; their devices hold no values.

    Raises:
        ArgumentError: there is no such slice.
        BackendError: libtpu is not installed.
    """
    tpu_slice = Slice.parse(topology)
    replicas = Replicas.on(devices_of(tpu_slice))
    started = time.monotonic()
    lowered = lower(replicas)
    lowered_at = time.monotonic()
    compiled, needed_bytes, hbm_bytes = _compile(lowered, tpu_slice.hbm_bytes)
    memory = None if compiled is None else _memory(compiled.memory_analysis())
    return CompiledStep(
        topology=tpu_slice.name,
        num_devices=replicas.size,
        device_noun=tpu_slice.device_noun,
        global_batch=global_batch,
        lower_seconds=lowered_at - started,
        compile_seconds=time.monotonic() - lowered_at,
        hbm_bytes=hbm_bytes,
        needed_bytes=needed_bytes if memory is None else memory.total,
        memory=memory,
        collectives=() if compiled is None else _hlo.collectives(compiled.as_text()),
    )


def _compile(lowered: Any, hbm_bytes: int) -> tuple[Any, int, int]:
    """The compiled step, or None and what the compiler says of the memory that it needs and that there is."""
    try:
        return lowered.compile(), 0, hbm_bytes
    except jax.errors.JaxRuntimeError as error:
        sizes = _hlo.out_of_memory(str(error))
        if sizes is None:
            raise
        return None, *sizes


def _memory(stats: Any) -> Memory:
    return Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
    )
