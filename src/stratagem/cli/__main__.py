# SPDX-License-Identifier: Apache-2.0
"""`python -m stratagem.cli`."""

from __future__ import annotations

from stratagem.cli import main

if __name__ == "__main__":
    main()
