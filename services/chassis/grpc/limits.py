"""The limits of a server: sizes of requests, and open calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024 * KIBIBYTE
# The size of a request of a caller without a key.
SMALL_BYTES_MAX: Final = 64 * KIBIBYTE


@dataclass(frozen=True, slots=True)
class ServerLimits:
    # The guard accepts messages up to the first size. It refuses larger ones with a reason up to the second size, and
    # gRPC refuses still larger ones without a reason.
    receive_bytes_max: int = 4 * MEBIBYTE
    refuse_bytes_max: int = 16 * MEBIBYTE
    # Streams and unary calls together. One more fails with RESOURCE_EXHAUSTED.
    rpcs_at_once_max: int = 20_000
    # Calls of callers with a key. What is left of the number above is a reserve for our own services, which have no
    # limit here, and for calls that are not admitted yet. open_calls.py says how many a single key may have.
    key_calls_max: int = 9_000
    # Calls of one method that needs no key, streams included. Nobody needs more, and a server can serve far more.
    open_calls_max: int = 1_000
    # Calls whose key is being looked up.
    unknown_calls_max: int = 1_000


PUBLIC: Final = ServerLimits()
# Our own services exchange batches with many items of up to 256 KiB each.
INTERNAL: Final = ServerLimits(receive_bytes_max=64 * MEBIBYTE, refuse_bytes_max=128 * MEBIBYTE)
