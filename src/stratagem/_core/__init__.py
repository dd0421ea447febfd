# SPDX-License-Identifier: Apache-2.0
"""What every layer stands on: contexts, values, enums, environment. No framework is loaded here."""
