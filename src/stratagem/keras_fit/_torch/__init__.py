# SPDX-License-Identifier: Apache-2.0
"""Keras on PyTorch, with one process per replica."""
