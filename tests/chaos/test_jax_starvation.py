# SPDX-License-Identifier: Apache-2.0
"""More devices than cores, and others at work on those: XLA's collectives must not starve, which would end the process.

The short form is part of the suite; `make test-stress` runs the long one, ten times over.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratagem.testing import ReplicaPool

pytestmark = pytest.mark.chaos

BURNERS = 2
WIDTH, LAYERS = 1024, 4


def queue_steps(count: int) -> float:
    """Send `count` training steps to the devices as fast as Python can, while other programs take the cores."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BURNERS)]
    try:
        return _queue_steps(count)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _queue_steps(count: int) -> float:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    from stratagem.engines import select
    from stratagem.engines.jax import JaxEngine
    from stratagem.engines.jax._in_flight import InFlight
    from stratagem.engines.jax._mesh import AXIS

    engine = select.engine()
    assert isinstance(engine, JaxEngine)
    engine.connect(engine.local_devices())
    replicas = engine.replicas

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x.mean()

    def step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        totals = [jax.lax.psum(gradient, AXIS) for gradient in gradients]
        return [weight - 0.1 * total for weight, total in zip(weights, totals, strict=True)], value[None]

    whole, divided = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(
        step, mesh=replicas.mesh, in_specs=(whole, divided), out_specs=(whole, divided), check_vma=False
    )
    program = jax.jit(mapped, donate_argnums=0)
    weights = jax.device_put([jnp.full((WIDTH, WIDTH), 1e-3) for _ in range(LAYERS)], replicas.replicated)
    x = jax.device_put(np.ones((4 * replicas.size, WIDTH), np.float32), replicas.sharded)
    in_flight = InFlight(replicas.on_cpu)
    losses = x
    for _ in range(count):
        weights, losses = program(weights, x)
        in_flight.note(losses)
    return float(losses.mean())


@pytest.mark.timeout(240)
def test_many_queued_steps_do_not_starve() -> None:
    with ReplicaPool(replicas=4, cpu_devices=4, backend="jax") as pool:
        (loss,) = pool.run(queue_steps, 50, timeout_seconds=200)
    assert loss < 0


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("repetition", range(10))
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_two_hundred_queued_steps_do_not_starve(devices: int, repetition: int) -> None:
    with ReplicaPool(replicas=devices, cpu_devices=devices, backend="jax") as pool:
        (loss,) = pool.run(queue_steps, 200, timeout_seconds=800)
    assert loss < 0
