# SPDX-License-Identifier: Apache-2.0
"""Modules of torch and Flax that are made in a scope train as on one device, and are the same on all replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stratagem.data._split import share_of
from stratagem.testing import ReplicaPool, assert_same_on_all_replicas
from tests.integration import modules, modules_flax

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
Pools = Callable[..., ReplicaPool]


def assert_close(found: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-4, err_msg=name)
    assert found["state"].keys() == expected["state"].keys()
    for part, value in found["state"].items():
        np.testing.assert_allclose(value, expected["state"][part], atol=5e-5, err_msg=f"{name} {part}")


@pytest.mark.parametrize("program", [modules.train, modules.train_with_keras_layers])
def test_modules_of_torch_train_as_on_one_device(replica_pool: Pools, program: Callable[[int], dict[str, Any]]) -> None:
    (expected,) = replica_pool(1).run(program, 1)
    for replicas in (2, 4):
        found = replica_pool(replicas).run(program, replicas)
        assert_same_on_all_replicas(found)
        assert_close(found[0], expected, f"torch {replicas}")


@pytest.mark.parametrize("replicas", [2, 4])
def test_buffers_are_the_means_by_rows_of_what_the_replicas_made(replica_pool: Pools, replicas: int) -> None:
    found = assert_same_on_all_replicas(replica_pool(replicas).run(modules.keep_buffers, replicas))
    x, _ = modules.data(6)
    parts = [x[share.start : share.stop] for share in (share_of(n, replicas, len(x)) for n in range(replicas))]
    rows = [len(part) for part in parts]
    assert replicas == 2 or rows == [2, 2, 2, 0]
    mean = np.average([part.mean(axis=0) for part in parts if len(part)], axis=0, weights=[n for n in rows if n])
    variance = np.average([part.var(axis=0, ddof=1) for part in parts if len(part)], axis=0)
    before = {"average": np.zeros(6), "running_mean": np.zeros(6), "running_var": np.ones(6)}
    for number, state in enumerate(found["states"], start=1):
        before = {
            "average": 0.5 * before["average"] + 0.5 * mean,
            "running_mean": 0.9 * before["running_mean"] + 0.1 * mean,
            "running_var": 0.9 * before["running_var"] + 0.1 * variance,
        }
        named = {name.rpartition(".")[2]: value for name, value in state.items()}
        for name, value in before.items():
            np.testing.assert_allclose(named[name], value, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(named["halved"], before["average"], atol=2e-3)
        np.testing.assert_allclose(named["replaced"], mean, atol=1e-6)
        assert named["halved"].dtype == np.float16
        assert (named["num_batches_tracked"], named["seen"]) == (number, number * rows[0])
        assert named["first"].tolist() == [True, False]
        assert named["mask"].tolist() == [0.0, -np.inf, -np.inf]
    for name, value in found["states"][-1].items():
        assert np.array_equal(value, found["after"][name]), f"evaluation changed {name}"


def test_replicas_drop_different_units_and_the_same_ones_in_an_equal_run(replica_pool: Pools) -> None:
    found = assert_same_on_all_replicas(replica_pool(2).run(modules.draw, 2))
    (masks, outside), (again, outside_again) = found["runs"]
    np.testing.assert_array_equal(masks, again)
    np.testing.assert_array_equal(outside, outside_again)
    for kind in (0, 1):
        one, other = masks[0][0][kind], masks[0][1][kind]
        assert set(np.unique(one)) == set(np.unique(other)) == {0.0, 2.0}
        assert not np.array_equal(one, other)
        assert not np.array_equal(one, masks[1][0][kind])


def test_what_cannot_be_done_is_said(replica_pool: Pools) -> None:
    first, second = replica_pool(2).run(modules.refuse, 2)
    for said in (first, second):
        assert (
            "ArgumentError: the gradient of Linear.weight would be summed over replicas a second time"
            in said["by hand"]
        )
        assert "would be summed over replicas a second time" in said["with Keras's optimizer"]
        assert "backward(create_graph=True) was called in strategy.run() for Linear," in said["create_graph"]
        assert "Embedding has a sparse gradient, which is not summed over replicas" in said["sparse"]
        assert "ArgumentError: weight of LazyLinear, a module" in said["lazy"]
        assert "got its shape in strategy.run(), where each replica makes values of its own" in said["lazy"]
        assert "ArgumentError: 0 of Sequential, a module" in said["unbuilt"]
        assert "StructureMismatchError: replica" in said["different"]
        assert all("\n  fix: " in text for name, text in said.items() if not name.startswith("outside"))
        assert said["outside, by hand"] == ""
    assert "weight [2, 6] torch.float32 in strategy.scope(), but replica 1 made it with" in first["different"]
    assert first["outside"].count("SGD changes 2 parameters in strategy.run() by gradients of this replica alone") == 1
    assert second["outside"] == ""


def test_modules_of_flax_train_as_on_one_device_and_processes_start_from_the_chiefs_values(replica_pool: Pools) -> None:
    for program, replicas in ((modules_flax.train, 2), (modules_flax.train_functionally, 4)):
        (expected,) = replica_pool(1, backend="jax").run(program, 1)
        (found,) = replica_pool(replicas, backend="jax").run(program, replicas)
        assert_close(found, expected, f"{program.__name__} {replicas}")
        if program is modules_flax.train:
            pool = replica_pool(4, backend="jax", processes=2)
            assert_close(assert_same_on_all_replicas(pool.run(program, 4, True)), expected, "jax in two processes")


def test_replicas_share_the_statistics_of_flax_and_not_the_draws(replica_pool: Pools) -> None:
    for replicas in (1, 2):
        (found,) = replica_pool(replicas, backend="jax").run(modules_flax.keep, replicas)
        x, _ = modules.data(16)
        means, variances = np.zeros(6), np.ones(6)
        for batch in (x[:8], x[8:]):
            parts = np.split(batch, replicas)
            means = 0.9 * means + 0.1 * np.mean([part.mean(axis=0) for part in parts], axis=0)
            variances = 0.9 * variances + 0.1 * np.mean([part.var(axis=0) for part in parts], axis=0)
        state = {name.replace("'", ""): value for name, value in found["state"].items()}
        np.testing.assert_allclose(state["[0][norm][mean].value"], means, atol=1e-6)
        np.testing.assert_allclose(state["[0][norm][var].value"], variances, atol=1e-6)
        np.testing.assert_allclose(state["[0][last].value"], x[8:].mean(axis=0), atol=1e-6)
        assert state["[0][steps].value"] == 2
        np.testing.assert_array_equal(found["masks"], found["again"])
        drawn = np.concatenate(found["masks"])
        assert set(np.unique(drawn)) == {0.0, 2.0}
        assert len(np.unique(drawn, axis=0)) == len(drawn) == 2 * replicas
        first = found["masks"][0][0] if replicas == 1 else first  # noqa: F821
        np.testing.assert_array_equal(found["masks"][0][0], first)


def test_what_cannot_be_done_with_modules_of_flax_is_said(replica_pool: Pools) -> None:
    (said,) = replica_pool(2, backend="jax").run(modules_flax.refuse)
    assert said.pop("nothing") == "nothing"
    for mistake, name in {
        "closure": "model",
        "container": "models",
        "helper": "model",
        "attribute": "model",
        "itself": "model",
        "method": "model",
        "captured beside arguments": "model",
    }.items():
        assert f"TracingError: the function that strategy.run traces knows {name!r}" in said[mistake], mistake
    for mistake in ("sow", "set"):
        assert "has made a variable or set an attribute of a module of Flax" in said[mistake], mistake
    assert "ArgumentTypeError: strategy.run was given nnx.metrics.Welford, a metric" in said["welford"]
    assert "TracingError: @stratagem.function was given a module of Flax" in said["function"]
    assert "TracingError: strategy.run was given a module of Flax inside @stratagem.function" in said["around"]
    assert "ArgumentError: strategy.run has left Model['layer']['bias'] with another value" not in said["not summed"]
    assert "ArgumentError: strategy.run has left Model['layer']['kernel'] with another value" in said["not summed"]
    assert all("\n  fix: " in text for text in said.values())
