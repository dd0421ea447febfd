# SPDX-License-Identifier: Apache-2.0
"""`tf.data.Dataset` as a source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stratagem._core.input_options import AutoShardPolicy
from stratagem.data._source import Source
from stratagem.data._spec import TensorSpec
from stratagem.errors import ArgumentTypeError

__all__ = ["TfDataSource"]

_TOO_FEW = re.compile(r"only has (\d+) file")
_ENDLESS, _NOBODY_KNOWS = -1, -2
# The operations that read the files which TensorFlow can divide, with or without V2 at their end.
_READERS = ("ArrayRecordDataset", "FixedLengthRecordDataset", "TextLineDataset", "TFRecordDataset")


class TfDataSource(Source):
    """A `tf.data.Dataset` of global batches, divided as its options say.

    Args:
        dataset: The data set.

    Raises:
        ArgumentTypeError: it is not batched.
    """

    kind = "tf.data.Dataset"

    def __init__(self, dataset: Any) -> None:
        import tensorflow as tf

        self._tf = tf
        self._dataset = dataset
        scalars = [spec for spec in tf.nest.flatten(dataset.element_spec) if spec.shape.rank == 0]
        if scalars:
            raise ArgumentTypeError(
                f"the tf.data.Dataset gives single rows: an element is {dataset.element_spec}",
                fix="batch it by the rows of a global batch: dataset.batch(global_batch_size)",
            )
        asked = dataset.options().experimental_distribute.auto_shard_policy
        self.policy = AutoShardPolicy(int(asked.value))

    @property
    def num_batches(self) -> int | None:
        count = int(self._dataset.cardinality())
        return count if count >= 0 else None

    @property
    def element_spec(self) -> Any:
        return self._tf.nest.map_structure(
            lambda spec: TensorSpec(tuple(spec.shape), spec.dtype.name), self._dataset.element_spec
        )

    def num_files(self, wanted: int) -> int | None:
        counts = list(_numbers_of_files(self._dataset))
        if not counts and self.policy is AutoShardPolicy.AUTO:
            return None
        if counts and _NOBODY_KNOWS not in counts:
            fewest = min(wanted if count == _ENDLESS else count for count in counts)
            if fewest < wanted:
                return fewest
        return self._tried(wanted)

    def _tried(self, wanted: int) -> int | None:
        """The same from TensorFlow, which fills the log with what it can't divide, so it is asked last."""
        errors = self._tf.errors
        try:
            # Only when the first worker asks for an element does TensorFlow count them.
            next(self._rewritten(AutoShardPolicy.FILE, wanted, 0).as_numpy_iterator(), None)
        except errors.NotFoundError:  # "Found an unshardable source dataset"
            return None
        except errors.InvalidArgumentError as error:
            found = _TOO_FEW.search(str(error))
            if found is None:
                raise
            return int(found[1])
        return wanted

    def of_worker(self, policy: AutoShardPolicy, count: int, index: int) -> TfDataSource:
        return TfDataSource(self._rewritten(policy, count, index))

    def _rewritten(self, policy: AutoShardPolicy, count: int, index: int) -> Any:
        """The data set whose graph TensorFlow has rewritten to read one worker's share."""
        # The public way to it, Strategy.experimental_distribute_dataset, needs TensorFlow's own workers.
        from tensorflow.python.data.experimental.ops import distribute

        options = self._tf.data.Options()
        options.experimental_distribute.auto_shard_policy = self._tf.data.experimental.AutoShardPolicy(int(policy))
        return distribute._AutoShardDataset(self._dataset.with_options(options), count, index, count)

    def batches(self, start: int) -> Iterator[Any]:
        dataset = self._dataset.skip(start) if start else self._dataset
        return iter(dataset.as_numpy_iterator())


def _numbers_of_files(dataset: Any) -> Iterator[int]:
    """How many files, by `tf.data`'s numbers, each part of a data set has whose files TensorFlow can divide."""
    dataset = getattr(dataset, "_impl", dataset)  # readers stand for a function over their file names
    parts = dataset._inputs()
    if any(map(_makes_readers, dataset._functions())):
        yield int(parts[0].cardinality())
        return
    for part in parts:
        yield from _numbers_of_files(part)


def _makes_readers(wrapper: Any) -> bool:
    graph = wrapper.function.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any(node.op.removesuffix("V2") in _READERS for node in nodes)
