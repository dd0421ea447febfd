# SPDX-License-Identifier: Apache-2.0
"""Names inside Keras that Stratagem reads with the torch backend alone."""

from __future__ import annotations

from stratagem.keras_fit._internals import Internal

INTERNALS = (
    Internal(
        "keras.Variable", "_value", "the tensor that holds the numbers, to be made a view; `value` may be a cast copy"
    ),
    Internal("keras.Model", "_call_has_training_arg", "whether to pass `training`, as Keras's own step asks"),
    Internal("keras.Model", "_compile_metrics", "the metrics given to compile; `metrics` mixes them with all others"),
    Internal(
        "keras.Model", "_compute_loss", "passes `training` to a compute_loss that takes it, and not to one that doesn't"
    ),
    Internal("keras.optimizers.Adam", "_get_variable_index", "which of the moments belong to a variable"),
    Internal("keras.optimizers.Adam", "_momentums", "first moments, to be updated in place"),
    Internal("keras.optimizers.Adam", "_velocities", "second moments, to be updated in place"),
    Internal(
        "keras.src.trainers.data_adapters.torch_data_loader_adapter",
        "TorchDataLoaderAdapter",
        "a user's loader, from whose generators its order is drawn",
    ),
)
