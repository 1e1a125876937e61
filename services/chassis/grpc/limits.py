"""The limits of a server: sizes of requests, open calls, and requests that arrive slowly.

gRPC buffers WINDOW_BYTES of a message that nobody reads. While a message is being read it buffers all of it, up to
`refuse_bytes_max`, and does not tell how much has arrived. So memory is bounded by the number of requests that are
being read: the sums of bytes below are divided by `refuse_bytes_max` (receiving.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024 * KIBIBYTE
# A request of a method that takes no document has at most this size, as has every request of a caller without a key.
SMALL_BYTES_MAX: Final = 64 * KIBIBYTE
# Without a limit gRPC takes 4 MiB or more. A larger message waits for one more round trip.
WINDOW_BYTES: Final = 64 * KIBIBYTE


@dataclass(frozen=True, slots=True)
class ServerLimits:
    # The guard accepts messages up to the first size. It refuses larger ones with a reason up to the second size, and
    # gRPC refuses still larger ones without a reason, as soon as their length is announced. The second is little more
    # than the first, because each request that is being read counts with it.
    receive_bytes_max: int = 4 * MEBIBYTE
    refuse_bytes_max: int = 5 * MEBIBYTE
    # Streams and unary calls together. One more fails with RESOURCE_EXHAUSTED.
    rpcs_at_once_max: int = 20_000
    # Connections at each listening address. One takes 15 KB. It is closed when it has had no call for the first time
    # below, or when it is new and has not said within the second one that it speaks HTTP/2.
    connections_max: int = 10_000
    idle_seconds: float = 600.0
    greeting_seconds: float = 10.0
    # Calls that one connection has open. A client keeps its other calls back until some of these have ended. gRPC
    # itself resets those of a client that does not, which costs us nothing. A refusal of ours costs the event loop as
    # much as a small call, so nobody should fill the loop with refusals over a few connections.
    connection_calls_max: int = 1_000
    # Calls of callers with a key. What is left of the number above is a reserve for our own services, which have no
    # limit here, and for calls that are not admitted yet. open_calls.py says how many a single key may have. A call
    # takes up to 100 KiB: WINDOW_BYTES, and what gRPC and its handler need.
    key_calls_max: int = 9_000
    # Calls of all methods that need no key together, streams included. Nobody needs more, and a server can serve far
    # more. Each may hold WINDOW_BYTES, 64 MiB in all.
    open_calls_max: int = 1_000
    # Calls whose key is being looked up. One address alone gets half of them, because anybody can send unknown keys.
    unknown_calls_max: int = 1_000
    # Without a key: a request that has not arrived after the first time is slow (receiving.py). After the second time
    # it is refused. Slow requests hold so many bytes at once.
    open_slow_seconds: float = 0.1
    open_receive_seconds: float = 5.0
    open_arriving_bytes_max: int = 64 * MEBIBYTE
    # The same limits hold for requests with a key.
    key_slow_seconds: float = 0.2
    key_receive_seconds: float = 10.0
    key_arriving_bytes_max: int = 256 * MEBIBYTE
    # What the requests of callers with a key hold while they are served, and what their answers hold until they are
    # read (held_messages.py). One workspace alone gets half of it. The first is enough for twenty to four hundred
    # starts at once with inputs of the largest size, and for thousands with inputs of some kilobytes.
    key_held_bytes_max: int = 768 * MEBIBYTE
    key_answers_bytes_max: int = 192 * MEBIBYTE


PUBLIC: Final = ServerLimits()
# Our own services exchange batches with many items of up to 256 KiB each, and need no reason for a larger one.
INTERNAL: Final = ServerLimits(receive_bytes_max=64 * MEBIBYTE, refuse_bytes_max=64 * MEBIBYTE)
