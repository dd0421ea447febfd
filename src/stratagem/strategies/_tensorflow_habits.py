# SPDX-License-Identifier: Apache-2.0
"""What to tell a loop that still has parts of TensorFlow in it: its tapes and functions see no tensor of ours."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType, TracebackType

from stratagem.errors import ContextError

__all__ = ["explained"]

_INSTEAD = (
    "TensorFlow was called with tensors that it can't calculate with. Instead of tf.GradientTape use "
    "loss, gradients = stratagem.value_and_grad(loss_fn, model.trainable_variables)(x, y), instead of tf.reduce_mean "
    "and its like keras.ops.mean, instead of @tf.function @stratagem.function"
)
_UNEXPLAINED = contextlib.nullcontext()


def explained(call: str) -> contextlib.AbstractContextManager[None]:
    """Give an error that TensorFlow raised in the block a note with the way out.

    Raises:
        ContextError: a `tf.function` is being traced.
    """
    # Whoever has not imported it pays nothing.
    tensorflow = sys.modules.get("tensorflow")
    return _UNEXPLAINED if tensorflow is None else _explained(tensorflow, call)


@contextlib.contextmanager
def _explained(tensorflow: ModuleType, call: str) -> Iterator[None]:
    if tensorflow.inside_function():
        raise ContextError(
            f"{call} was called inside a tf.function, which knows no tensors but TensorFlow's",
            fix="put @stratagem.function above it instead of @tf.function",
        )
    try:
        yield
    except Exception as error:
        if _passed_through(error):
            error.add_note(_INSTEAD)
        raise


def _passed_through(error: BaseException) -> bool:
    """Whether TensorFlow's code called what raised."""
    cause: BaseException | None = error
    while cause is not None:
        if any(module == "tensorflow" or module.startswith("tensorflow.") for module in _modules(cause.__traceback__)):
            return True
        cause = cause.__cause__
    return False


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        yield traceback.tb_frame.f_globals.get("__name__", "")
        traceback = traceback.tb_next
