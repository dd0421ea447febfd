# SPDX-License-Identifier: Apache-2.0
"""Memory that a training step frees stays with the process for the next step."""

from __future__ import annotations

import ctypes
import logging
import platform

_LOG = logging.getLogger("stratagem")

# Of malloc.h. glibc gives large blocks back to the kernel when they are freed; a step that takes the same memory again
# then pays a page fault for every 4 KiB of it, which for a model of dense layers is half of the step's time.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = ((_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 * 2**20), (_MMAP_THRESHOLD, 2**30))


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory; elsewhere, do nothing. The process stays as large as it was at its peak."""
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    if not all(mallopt(option, value) for option, value in _SETTINGS):
        _LOG.warning("glibc refused to keep freed memory; steps on a CPU may be slower")
