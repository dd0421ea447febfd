# SPDX-License-Identifier: Apache-2.0
"""Engines: the parts that know one framework each."""
