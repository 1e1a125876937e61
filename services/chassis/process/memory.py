"""Keeps freed memory for the next large value.

By default, malloc gives the memory of a large value back to the kernel, which then clears each page for the next one.
An answer of 1.6 MB is copied again and again on its way through a runner. That made 1,000 to 2,500 page faults, which
took nearly half of the CPU time for it.
"""

from __future__ import annotations

import ctypes
from typing import Final

# malloc.h
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Larger values are given back at once.
_KEPT_VALUE_BYTES_MAX: Final = 4 * 1024 * 1024
# What each thread may keep at the end of its memory.
_KEPT_BYTES_MAX: Final = 16 * 1024 * 1024


def keep_freed_memory() -> None:
    """From now on, where the C library can be told so. musl, for one, cannot."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _KEPT_VALUE_BYTES_MAX)
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)
