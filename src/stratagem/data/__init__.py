# SPDX-License-Identifier: Apache-2.0
"""Which rows of a global batch belong to which replica."""
