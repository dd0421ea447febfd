# SPDX-License-Identifier: Apache-2.0
"""Every name inside Keras that Stratagem reads without standing in for it, in one table; the rest is in `_hooks.HOOKS`.

A test finds each private name that this package uses in one of the two tables, and another checks that it still is
what it is used as.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Internal:
    """One name inside Keras.

    Attributes:
        owner: Where it is, as a dotted path; of an attribute, the class whose instances have it.
        name: The name.
        reason: Why a public one does not do.
    """

    owner: str
    name: str
    reason: str


INTERNALS = (
    Internal(
        "keras.Variable", "_value", "the tensor that holds the numbers, to be made a view; `value` may be a cast copy"
    ),
    Internal("keras.Model", "_call_has_training_arg", "whether to pass `training`, as Keras's own step asks"),
    Internal("keras.Model", "_compile_loss", "its trackers are the losses of single outputs, which are sums of terms"),
    Internal("keras.Model", "_compile_metrics", "the metrics given to compile; `metrics` mixes them with all others"),
    Internal(
        "keras.Model", "_compute_loss", "passes `training` to a compute_loss that takes it, and not to one that doesn't"
    ),
    Internal("keras.Model", "_flatten_layers", "all layers, nested ones too; `layers` stops at the first level"),
    Internal("keras.Model", "_loss_tracker", "the metric called loss, which is a sum of terms"),
    Internal(
        "keras.Layer",
        "_non_trainable_variables",
        "state that a layer keeps; the public list has frozen weights as well",
    ),
    Internal("keras.optimizers.Adam", "_get_variable_index", "which of the moments belong to a variable"),
    Internal("keras.optimizers.Adam", "_momentums", "first moments, to be updated in place"),
    Internal("keras.optimizers.Adam", "_velocities", "second moments, to be updated in place"),
    Internal("keras.metrics.MeanMetricWrapper", "_fn", "a user's function may give one number for a whole batch"),
    Internal("keras.src.losses.loss", "apply_mask", "the weights that Keras divides by when there is a mask"),
    Internal("keras.src.trainers.compile_utils", "CompileMetrics", "a container of metrics inside `model.metrics`"),
    Internal(
        "keras.src.trainers.data_adapters.data_adapter", "DataAdapter", "what Keras's loops take their batches from"
    ),
    Internal(
        "keras.src.trainers.data_adapters.array_data_adapter",
        "ArrayDataAdapter",
        "arrays are cut by index; everything else is read by the chief",
    ),
    Internal(
        "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter",
        "_inputs",
        "the arrays, to see whether every process has the same",
    ),
)
