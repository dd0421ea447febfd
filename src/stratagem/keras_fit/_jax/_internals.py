# SPDX-License-Identifier: Apache-2.0
"""Names inside Keras that Stratagem reads with the jax backend alone."""

from __future__ import annotations

from stratagem.keras_fit._internals import Internal

INTERNALS = (
    Internal("keras.Variable", "_value", "the array, to be replaced by one that is known to be right"),
    Internal("keras.Model", "_get_jax_state", "the state in the form and order that Keras's own steps take it"),
    Internal("keras.Model", "_losses_override", "what a step that was given up left for its loss is taken away"),
    Internal("keras.Model", "_make_function", "steps_per_execution as Keras does it"),
    Internal("keras.Model", "_symbolic_build", "builds a model, its optimizer and its metrics from a batch's shapes"),
    Internal("keras.optimizers.LossScaleOptimizer", "_trainable_variables", "the weights that it was built for"),
    Internal(
        "keras.src.trainers.data_adapters.array_slicing",
        "convert_to_sliceable",
        "arrays in the form in which Keras cuts batches from them, to leave batches out without reading them",
    ),
    Internal("keras.src.backend", "get_keras_mask", "the mask of predictions, for the metrics"),
    Internal("keras.src.backend", "set_keras_mask", "the same, on the way back"),
)
