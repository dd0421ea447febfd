# SPDX-License-Identifier: Apache-2.0
"""The names of `tf.tpu` that programs for TPUs use."""

from __future__ import annotations

from stratagem.tpu import experimental

__all__ = ["experimental"]
