# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights in matrix products: jax's own numbers, without the transposition that jax puts after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._weight_gradients import computed_in_order

pytestmark = pytest.mark.timeout(60)

# A product, the shapes of its factors, and whether no turning round of the second one's gradient is to be seen: that is
# so for a weight whose order allows it, unless the first factor is larger than the result and the weight together.
PRODUCTS: tuple[tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], bool], ...] = (
    (lambda x, w: x @ w, (5, 3), (3, 4), True),
    (lambda x, w: x @ w, (2, 5, 3), (3, 4), True),
    (lambda x, w: x @ w, (3,), (3, 4), True),
    (lambda x, w: x @ w, (5, 3), (3,), True),
    (lambda x, w: x @ w, (20, 9), (9, 4), False),
    (lambda x, w: jnp.einsum("btd,dhk->bthk", x, w), (2, 5, 6), (6, 2, 3), True),
    (lambda x, w: jnp.einsum("bthk,hkd->btd", x, w), (2, 5, 2, 3), (2, 3, 6), True),
    (lambda x, w: x.astype("bfloat16") @ w.astype("bfloat16"), (5, 3), (3, 4), True),
    (lambda x, w: jnp.einsum("btkh,hkd->btd", x, w), (2, 5, 3, 2), (2, 3, 6), False),
    (lambda x, w: x @ w.T, (5, 3), (4, 3), False),
    (lambda x, w: jnp.einsum("bij,bjk->bik", x, w), (2, 3, 4), (2, 4, 5), False),
)


def gradients(product: Callable[..., Any], x: Any, w: Any) -> tuple[Any, Any]:
    return jax.grad(lambda x, w: jnp.sum(jnp.sin(product(x, w).astype("float32"))), argnums=(0, 1))(x, w)


def factors(x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x, w = (jnp.asarray(random.standard_normal(shape), "float32") for shape in (x_shape, w_shape))
    return x, w


@pytest.mark.parametrize(("product", "x_shape", "w_shape", "in_order"), PRODUCTS)
def test_gradients_are_jaxs_and_those_of_weights_are_not_turned_round(
    product: Callable[..., Any], x_shape: tuple[int, ...], w_shape: tuple[int, ...], in_order: bool
) -> None:
    x, w = factors(x_shape, w_shape)
    jax.clear_caches()  # of the gradients of functions that are jitted inside, such as einsum
    expected = gradients(product, x, w)
    jax.clear_caches()
    with computed_in_order(Replicas.on(jax.devices())):
        found = gradients(product, x, w)
        text = str(jax.make_jaxpr(lambda w: gradients(product, x, w)[1])(w))
    for mine, jaxs in zip(found, expected, strict=True):
        assert mine.dtype == jaxs.dtype
        np.testing.assert_allclose(mine, jaxs, rtol=1e-6, atol=1e-6)
    assert ("transpose[" not in text) == in_order


def test_second_derivatives_are_jaxs() -> None:
    x, w = factors((5, 3), (3, 4))

    def second(w: Any) -> Any:
        return jax.hessian(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

    jax.clear_caches()
    expected = second(w)
    jax.clear_caches()
    with computed_in_order(Replicas.on(jax.devices())):
        np.testing.assert_allclose(second(w), expected, rtol=1e-5, atol=1e-5)


def test_outside_of_steps_and_without_fast_paths_jax_does_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = factors((5, 3), (3, 4))

    def text() -> str:
        jax.clear_caches()
        return str(jax.make_jaxpr(lambda w: gradients(jnp.matmul, x, w)[1])(w))

    with computed_in_order(Replicas.on(jax.devices())):
        assert "transpose[" not in text()
    assert "transpose[" in text()
    monkeypatch.setenv("STRATAGEM_FAST_PATHS", "0")
    with computed_in_order(Replicas.on(jax.devices())):
        assert "transpose[" in text()
