# SPDX-License-Identifier: Apache-2.0
"""The helpers of `tf.nn` that make a replica's loss such that the sum over replicas is the loss of the global batch."""

from __future__ import annotations

from typing import Any

from keras import ops

from stratagem._core import contexts
from stratagem.errors import ArgumentError, ArgumentTypeError, ContextError

__all__ = ["compute_average_loss", "scale_regularization_loss"]


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Any:
    """This replica's part of the mean loss over the global batch: `tf.nn.compute_average_loss`.

    The sum over replicas, which `optimizer.apply` makes of the gradients, is then exactly the mean over all rows.

    Args:
        per_example_loss: The loss of each row: shape (rows,), or more dimensions, all of which are summed.
        sample_weight: A weight per row, or of a shape that broadcasts; None for 1.
        global_batch_size: Rows of the global batch. If it is not given they are counted: for nothing where all replicas
            must have equally many (JAX), else by one small message.

    Returns:
        A scalar: the weighted sum of this replica's losses over the rows of all replicas.

    Raises:
        ArgumentError: `global_batch_size` is less than 1.
        ArgumentTypeError: it is no integer.
        ContextError: called in the scope of a strategy outside `run`, where there is no replica.

    >>> round(float(compute_average_loss([1.0, 2.0, 6.0], global_batch_size=6)), 4)
    1.5
    """
    losses: Any = ops.convert_to_tensor(per_example_loss)
    if "int" in str(losses.dtype):
        losses = ops.cast(losses, "float32")
    rows = 1 if losses.ndim == 0 else losses.shape[0]
    if sample_weight is not None:
        weights: Any = ops.cast(ops.convert_to_tensor(sample_weight), losses.dtype)
        while 0 < weights.ndim < losses.ndim:
            weights = ops.expand_dims(weights, -1)
        losses = losses * weights
    count = _rows_of_all(rows) if global_batch_size is None else _checked(global_batch_size)
    total: Any = ops.sum(losses)
    return total / ops.cast(count, losses.dtype)


def scale_regularization_loss(regularization_loss: Any) -> Any:
    """A loss of variables, which every replica has, divided by the replicas: `tf.nn.scale_regularization_loss`.

    Args:
        regularization_loss: A scalar, or a tensor that is summed.

    Raises:
        ContextError: called in the scope of a strategy outside `run`, where there is no replica.

    >>> float(scale_regularization_loss([1.0, 3.0]))
    4.0
    """
    total: Any = ops.sum(ops.convert_to_tensor(regularization_loss))
    replica = _replica("scale_regularization_loss()")
    return total if replica is None else total / replica.num_replicas_in_sync


def _rows_of_all(rows: int) -> Any:
    replica = _replica("compute_average_loss() without global_batch_size")
    if replica is None or replica.num_replicas_in_sync == 1:
        return rows
    if replica.strategy.extended.engine.is_tracing:
        return rows * replica.num_replicas_in_sync
    return replica.all_reduce("SUM", rows)


def _replica(call: str) -> Any:
    context = contexts.current()
    if context is None:
        return None
    if context.is_cross_replica:
        raise ContextError(
            f"{call} was called in cross-replica context",
            fix="call it in the function that is given to strategy.run(...)",
        )
    return context.replica_context


def _checked(size: Any) -> Any:
    if isinstance(size, bool) or (not isinstance(size, int) and "int" not in str(getattr(size, "dtype", ""))):
        raise ArgumentTypeError(
            f"global_batch_size={size!r:.60} is no integer", fix="give the rows of the global batch, over all replicas"
        )
    if getattr(size, "ndim", 0):
        raise ArgumentTypeError("global_batch_size is not a scalar", fix="give one number for all replicas")
    if isinstance(size, int) and size < 1:
        raise ArgumentError(f"global_batch_size={size} is less than 1", fix="give the rows of the global batch")
    return size
