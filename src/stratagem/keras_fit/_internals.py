# SPDX-License-Identifier: Apache-2.0
"""Every name inside Keras that Stratagem reads without standing in for it: here those of all backends.

`_torch/_internals.py` and `_jax/_internals.py` have the others; what Stratagem stands in for is in each `_hooks.HOOKS`.
A test finds each private name that this package uses in one of the tables, and another checks that it still is what
it is used as.
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
    Internal("keras.Model", "_compile_loss", "its trackers are the losses of single outputs, which are sums of terms"),
    Internal("keras.Model", "_flatten_layers", "all layers, nested ones too; `layers` stops at the first level"),
    Internal("keras.Model", "_loss_tracker", "the metric called loss, which is a sum of terms"),
    Internal("keras.Model", "_initial_epoch", "where Keras's own loop begins; its BackupAndRestore sets it as well"),
    Internal(
        "keras.Layer",
        "_non_trainable_variables",
        "state that a layer keeps; the public list has frozen weights as well",
    ),
    Internal(
        "keras.src.backend.common.name_scope",
        "current_path",
        "a variable that a program makes itself has none; those of layers, optimizers and metrics have their owner's",
    ),
    Internal(
        "keras.src.backend.common.symbolic_scope",
        "in_symbolic_scope",
        "whether a layer is called for the shapes of its outputs only",
    ),
    Internal("keras.metrics.MeanMetricWrapper", "_fn", "a user's function may give one number for a whole batch"),
    Internal("keras.src.losses.loss", "apply_mask", "the weights that Keras divides by when there is a mask"),
    Internal(
        "keras.src.trainers.data_adapters.array_data_adapter",
        "ArrayDataAdapter",
        "arrays are cut by index; everything else is read by the chief, and read again to go on after a stop",
    ),
    Internal(
        "keras.src.trainers.data_adapters.data_adapter", "DataAdapter", "what Keras's loops take their batches from"
    ),
    Internal(
        "keras.src.trainers.data_adapters.data_adapter_utils",
        "class_weight_to_sample_weights",
        "class weights mean on a divided data set what they mean on any other",
    ),
    Internal(
        "keras.src.trainers.data_adapters.generator_data_adapter",
        "GeneratorDataAdapter",
        "a generator can't be opened again for its earlier passes",
    ),
    Internal(
        "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter",
        "_inputs",
        "the arrays, to see whether every process has the same, and to leave batches out without reading them",
    ),
    Internal(
        "keras.src.trainers.epoch_iterator.EpochIterator",
        "_steps_seen",
        "how far a pass is that goes on from epoch to epoch; Keras ends the pass by it",
    ),
    Internal("keras.src.trainers.compile_utils", "CompileMetrics", "a container of metrics inside `model.metrics`"),
)
