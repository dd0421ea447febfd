# SPDX-License-Identifier: Apache-2.0
"""The command `stratagem`."""

from __future__ import annotations

from stratagem.cli._app import main as main

__all__ = ["main"]
