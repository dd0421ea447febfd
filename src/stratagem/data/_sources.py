# SPDX-License-Identifier: Apache-2.0
"""Which source a user's data set is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from stratagem.data._grain import grain_loader_source, iter_dataset_source, map_dataset_source
from stratagem.data._hugging_face import table_source, table_stream_source
from stratagem.data._iterables import IterableSource
from stratagem.data._py_dataset import PyDatasetSource
from stratagem.data._source import Source
from stratagem.data._tf_data import TfDataSource
from stratagem.data._torch_loader import loader_source
from stratagem.errors import ArgumentTypeError

__all__ = ["source_of"]

_Make = Callable[[Any], Source]

# Where a library has a class, and what its objects are here. A library that nobody has imported has no objects.
_LIBRARIES: tuple[tuple[str, str, _Make], ...] = (
    ("tensorflow", "data.Dataset", TfDataSource),
    ("datasets", "Dataset", table_source),
    ("datasets", "IterableDataset", table_stream_source),
    ("torch.utils.data", "DataLoader", loader_source),
    ("keras.utils", "PyDataset", PyDatasetSource),
    ("grain", "MapDataset", map_dataset_source),
    ("grain", "IterDataset", iter_dataset_source),
    ("grain", "DataLoader", grain_loader_source),
)


def source_of(dataset: Any) -> Source:
    """The source that `dataset` is.

    Raises:
        ArgumentTypeError: it is none, or its elements are no batches.
    """
    if isinstance(dataset, Source):
        return dataset
    for module, name, make in _LIBRARIES:
        if _is_a(dataset, module, name):
            return make(dataset)
    if isinstance(dataset, (str, bytes, dict)) or hasattr(dataset, "__array__"):
        raise ArgumentTypeError(
            f"a {type(dataset).__name__} has no batches",
            fix="give stratagem.ArrayDataset(arrays, batch_size=global_batch_size), or a data set of global batches",
        )
    if isinstance(dataset, Iterable) or callable(dataset):
        return IterableSource(dataset)
    raise ArgumentTypeError(
        f"a {type(dataset).__name__} is no data set",
        fix="give a tf.data.Dataset, a torch or grain DataLoader, a stratagem.ArrayDataset or an iterable of global "
        "batches",
    )


def _is_a(dataset: Any, module: str, name: str) -> bool:
    """Whether `dataset` is one of a library's, which is imported then."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(dataset, found)
