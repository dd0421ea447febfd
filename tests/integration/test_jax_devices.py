# SPDX-License-Identifier: Apache-2.0
"""Logical CPU devices with jax: one wish, said in any of the ways there are, and what is said if it comes too late."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.processes import script, started, stratagem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SHOW = """
import os
import stratagem as distribute
strategy = distribute.MirroredStrategy()
values = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
print(strategy.num_replicas_in_sync, len(strategy.extended.devices), int(strategy.reduce("SUM", values, axis=None)))
assert "NPROC" not in os.environ
"""
JAX = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
THREE = "3 3 3\n"


def output(folder: Path, text: str, variables: Mapping[str, str], launcher: tuple[str, ...] | None = None) -> str:
    name = script(folder, text)
    argv = [sys.executable, name] if launcher is None else stratagem("run", *launcher, name)
    with started(argv, folder, {**JAX, **variables}) as program:
        code, out, err = program.finish(seconds=90.0)
    assert code == 0, err
    return out


@pytest.mark.parametrize(
    ("before", "variables", "launcher"),
    [
        ("", {"STRATAGEM_CPU_DEVICES": "3"}, None),
        ("", {}, ("--cpu-devices", "3")),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, None),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, ()),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=5", "STRATAGEM_CPU_DEVICES": "3"}, None),
        ("import stratagem; stratagem.config.set_logical_cpu_devices(3)", {}, None),
        ("import jax, keras, stratagem; stratagem.config.set_logical_cpu_devices(3)", {}, None),
        (
            "import jax, stratagem; jax.devices(); stratagem.config.set_logical_cpu_devices(3)",
            {"JAX_NUM_CPU_DEVICES": "4"},
            None,
        ),
    ],
    ids=["variable", "option", "xla", "xla-launched", "both", "call", "imported", "started-with-more"],
)
def test_a_wish_for_cpu_devices_is_met(
    tmp_path: Path, before: str, variables: dict[str, str], launcher: tuple[str, ...] | None
) -> None:
    assert output(tmp_path, before + "\n" + SHOW, variables, launcher) == THREE


def test_a_wish_that_comes_after_jax_has_started_is_refused_in_a_sentence(tmp_path: Path) -> None:
    text = """
    import jax, stratagem
    jax.numpy.ones(1)
    stratagem.config.set_logical_cpu_devices(4)
    try:
        stratagem.MirroredStrategy()
    except stratagem.errors.ContextError as error:
        print(error)
    """
    assert output(tmp_path, text, {}).splitlines() == [
        "4 logical CPU devices were asked for, but jax has started with 1",
        "  fix: ask for them before anything computes with jax, or set STRATAGEM_CPU_DEVICES=4 outside",
    ]


def test_a_users_pool_size_stays(tmp_path: Path) -> None:
    text = SHOW.replace('assert "NPROC" not in os.environ', 'assert os.environ["NPROC"] == "11"')
    assert output(tmp_path, text, {"NPROC": "11", "STRATAGEM_CPU_DEVICES": "3"}) == THREE
