"""Certificates of a process: one pair for both directions, and the authority that signed its peers.

With a pair and an authority both sides must show a certificate (mTLS), and the common name of the caller's is its
identity. A pair alone encrypts, and callers are known by their keys; an authority alone is all that a process needs
that only calls. gRPC demands certificates of everybody at a port or asks nobody for one: who has none is served at an
address beside it (`PublicAddress`). Read at start: a renewed certificate is taken up by a restart, which costs nothing
here.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc


class Pair(NamedTuple):
    """A certificate (with what leads to its authority), and the key that belongs to it."""

    certificate_file: Path
    key_file: Path

    def fault(self) -> str | None:
        """What is wrong with the files. gRPC itself would only say that it cannot listen."""
        try:
            # Never asks for a passphrase: nobody is there to answer.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self, password="")
        except (OSError, ValueError) as failure:
            return f"{self.certificate_file} and {self.key_file} are no pair: {failure}"
        return None

    def read(self) -> tuple[bytes, bytes]:
        """The key and the certificate, in gRPC's order."""
        return self.key_file.read_bytes(), self.certificate_file.read_bytes()


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """Where callers without a certificate are served: over TLS, and known by their keys."""

    address: str
    pair: Pair

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([self.pair.read()])


@dataclass(frozen=True, slots=True)
class Tls:
    pair: Pair | None = None
    authority_file: Path | None = None
    server_name: str = ""

    def for_server(self) -> grpc.ServerCredentials | None:
        """None: there is nothing to show, so it listens in plain text."""
        if self.pair is None:
            return None
        return grpc.ssl_server_credentials(
            [self.pair.read()],
            root_certificates=self._authority(),
            require_client_auth=self.authority_file is not None,
        )

    def for_client(self) -> grpc.ChannelCredentials:
        key, certificate = (None, None) if self.pair is None else self.pair.read()
        return grpc.ssl_channel_credentials(self._authority(), key, certificate)

    def _authority(self) -> bytes | None:
        return None if self.authority_file is None else self.authority_file.read_bytes()


def authority_fault(file: Path) -> str | None:
    """What is wrong with the file. gRPC itself would only fail every handshake."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (OSError, ValueError) as failure:
        return f"{file} holds no authority's certificate: {failure}"
    return None
