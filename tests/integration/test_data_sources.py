# SPDX-License-Identifier: Apache-2.0
"""Data sets of every kind, divided among processes that are real."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
from unit.data import made_sources

import stratagem
from stratagem.testing import ReplicaPool

_EACH = ("generator", "numpy", "PyDataset", "torch DataLoader", "torch workers", "grain MapDataset", "tf.data")
_OTHERS = ("grain DataLoader", "datasets.Dataset", "datasets.IterableDataset")


def given(names: list[str]) -> dict[str, tuple[list[list[int]], list[int]]]:
    """By data set: this process's rows of each step, and those that it has read."""
    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        pass
    found: dict[str, tuple[list[list[int]], list[int]]] = {}
    for name in names:
        read: list[int] = []
        if name == "torch workers":
            dataset = made_sources.torch_loader(read, num_workers=2)
        else:
            dataset = made_sources.MADE[name](read)
        elements = strategy.experimental_distribute_dataset(dataset)
        parts = [strategy.experimental_local_results(element["row"])[0] for element in elements]
        found[name] = ([part.tolist() for part in parts], read)
    return found


@pytest.mark.integration
def test_report_49_generator_numpy_py_dataset_torch_loader_grain_and_tf_data_give_each_row_once_on_two_processes(
    replica_pool: Callable[..., ReplicaPool],
) -> None:
    names = [
        name
        for name in (*_EACH, *_OTHERS)
        if all(importlib.util.find_spec(library) for library in made_sources.NEEDS.get(name, ()))
    ]
    processes = replica_pool(2).run(given, names, timeout_seconds=120)
    for name in names:
        (first, first_read), (second, second_read) = (found[name] for found in processes)
        assert len(first) == len(second) == -(-made_sources.ROWS // made_sources.BATCH), name
        rows = [{row for step in steps for row in step} for steps in (first, second)]
        assert rows[0] | rows[1] == set(range(made_sources.ROWS)), name
        assert not rows[0] & rows[1], name
        if name == "torch workers" or name in made_sources.NOT_NOTED:
            continue
        if name in made_sources.BY_ROWS:
            assert (set(first_read), set(second_read)) == tuple(rows), name
        else:
            assert (set(first_read), second_read) == (set(range(made_sources.ROWS)), []), name
