# SPDX-License-Identifier: Apache-2.0
"""What a replica is about to do in a collective, in torch's terms."""

from __future__ import annotations

import os
from collections.abc import Sequence

import keras
import torch

from stratagem.engines import _header
from stratagem.engines._header import Header, check_agreement, describe

__all__ = ["Header", "callers_line", "check_agreement", "describe", "specs_of"]

# Keras and torch call us from their own code: optimizers, backward passes.
_LIBRARIES = tuple(folder + os.sep for folder in (*keras.__path__, *torch.__path__))


def specs_of(tensors: Sequence[torch.Tensor]) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
    """Dtype and shape of each tensor."""
    return tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)


def callers_line() -> str:
    """The innermost line of the call stack that is the user's own, as "file.py:12"."""
    return _header.callers_line(_LIBRARIES)
