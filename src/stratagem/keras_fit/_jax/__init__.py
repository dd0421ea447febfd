# SPDX-License-Identifier: Apache-2.0
"""`Model.fit` and its like under a strategy, on JAX."""
