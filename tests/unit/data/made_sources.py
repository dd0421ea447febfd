# SPDX-License-Identifier: Apache-2.0
"""Every kind of data set that a strategy takes, made of the same rows: the numbers from 0 on."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import torch

import stratagem

__all__ = ["BATCH", "BY_ROWS", "MADE", "NEEDS", "NOT_NOTED", "ROWS", "numbers"]

ROWS, BATCH = 21, 5  # the last batch has one row: of two workers one has none of it


class Rows:
    """Rows with an index, which notes those that are read."""

    def __init__(self, read: list[int]) -> None:
        self._read = read

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        self._read.append(int(row))
        return {"row": np.int64(row)}


class Batches(keras.utils.PyDataset):
    """Notes the rows of each batch that is read."""

    def __init__(self, read: list[int]) -> None:
        super().__init__()
        self._read = read

    @property
    def num_batches(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows = np.arange(index * BATCH, min((index + 1) * BATCH, ROWS))
        self._read.extend(rows.tolist())
        return {"row": rows}


def generator(read: list[int]) -> Any:
    def batches() -> Iterator[dict[str, Any]]:
        for begin in range(0, ROWS, BATCH):
            rows = np.arange(begin, min(begin + BATCH, ROWS))
            read.extend(rows.tolist())
            yield {"row": rows}

    return batches


def arrays(read: list[int]) -> Any:
    return stratagem.ArrayDataset({"row": np.arange(ROWS)}, BATCH, shuffle=True)


def tf_data(read: list[int]) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices({"row": np.arange(ROWS)}).shuffle(ROWS).batch(BATCH)


def torch_loader(read: list[int], **options: Any) -> Any:
    rows: Any = Rows(read)
    return torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True, **options)


def grain_map(read: list[int]) -> Any:
    import grain

    return grain.MapDataset.source(Rows(read)).seed(3).shuffle().batch(BATCH)


def grain_map_of_batches(read: list[int]) -> Any:
    return grain_map(read).map(lambda batch: {"row": batch["row"] + 0})


def grain_iter(read: list[int]) -> Any:
    import grain

    return grain.MapDataset.source(Rows(read)).seed(3).shuffle().to_iter_dataset().batch(BATCH)


def grain_loader(read: list[int], shards: Any = None) -> Any:
    import grain

    sampler = grain.samplers.IndexSampler(ROWS, shuffle=True, seed=3, num_epochs=1)
    return grain.DataLoader(
        data_source=Rows(read),
        sampler=sampler,
        operations=[grain.transforms.Batch(BATCH)],
        shard_options=shards or grain.sharding.NoSharding(),
    )


def table(read: list[int]) -> Any:
    import datasets

    return datasets.Dataset.from_dict({"row": list(range(ROWS))}).shuffle(seed=3).batch(BATCH)


def table_of_images(read: list[int]) -> Any:
    """A row is the one pixel of a picture."""
    import datasets
    from PIL import Image

    pictures = []
    for row in range(ROWS):
        file = io.BytesIO()
        Image.fromarray(np.full((1, 1), row, np.uint8)).save(file, "PNG")
        pictures.append({"bytes": file.getvalue(), "path": None})
    features = datasets.Features({"row": datasets.Image()})
    return datasets.Dataset.from_dict({"row": pictures}, features=features).batch(BATCH).select([2, 0, 1, 3, 4])


def table_stream(read: list[int]) -> Any:
    import datasets

    def rows() -> Iterator[dict[str, int]]:
        for row in range(ROWS):
            read.append(row)
            yield {"row": row}

    return datasets.IterableDataset.from_generator(rows).batch(BATCH)


MADE: dict[str, Callable[[list[int]], Any]] = {
    "generator": generator,
    "numpy": arrays,
    "PyDataset": Batches,
    "torch DataLoader": torch_loader,
    "grain MapDataset": grain_map,
    "grain MapDataset of batches": grain_map_of_batches,
    "grain IterDataset": grain_iter,
    "grain DataLoader": grain_loader,
    "tf.data": tf_data,
    "datasets.Dataset": table,
    "datasets.Dataset of images": table_of_images,
    "datasets.IterableDataset": table_stream,
}
# What each process reads its own rows of.
BY_ROWS = {"numpy", "torch DataLoader", "grain MapDataset", "datasets.Dataset", "datasets.Dataset of images"}
NEEDS = {
    "grain MapDataset": ["grain"],
    "grain MapDataset of batches": ["grain"],
    "grain IterDataset": ["grain"],
    "grain DataLoader": ["grain"],
    "tf.data": ["tensorflow"],
    "datasets.Dataset": ["datasets"],
    "datasets.Dataset of images": ["datasets", "PIL"],
    "datasets.IterableDataset": ["datasets"],
}
NOT_NOTED = {"numpy", "tf.data", "datasets.Dataset"}  # whose rows are read by their library


def numbers(part: Any) -> list[int]:
    """The rows of a replica's part."""
    return np.asarray(part["row"]).reshape(-1).tolist()
