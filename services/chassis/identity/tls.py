"""The certificates of a process: one pair for both directions, and the authority that signed those of its peers.

With a pair and an authority both sides must show a certificate (mTLS), and the common name in the caller's certificate
is its identity. With a pair alone the traffic is encrypted, and callers are identified by their keys. A process that
only calls others needs the authority alone. On one port gRPC demands a certificate from all callers or from none, so
callers without one have an address of their own (`PublicAddress`). The files are read at start: restart a process to
renew its certificate.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc


class Pair(NamedTuple):
    """A certificate with the chain to its authority, and its private key."""

    certificate_file: Path
    key_file: Path

    def fault(self) -> str | None:
        """Say what is wrong with the files. None: they can be used. gRPC would only say that it cannot listen."""
        try:
            # Without this empty passphrase, OpenSSL would ask for one at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self, password="")
        except (OSError, ValueError) as failure:
            return f"{self.certificate_file} and {self.key_file} cannot be used as certificate and key: {failure}"
        return None

    def read(self) -> tuple[bytes, bytes]:
        """The key and the certificate, in gRPC's order."""
        return self.key_file.read_bytes(), self.certificate_file.read_bytes()


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """The address for callers without a certificate. They use TLS, and are identified by their keys."""

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
        """None: without a certificate the server listens in plain text."""
        if self.pair is None:
            return None
        return grpc.ssl_server_credentials(
            [self.pair.read()], root_certificates=self._authority(), require_client_auth=self.authority_file is not None
        )

    def for_client(self) -> grpc.ChannelCredentials:
        key, certificate = (None, None) if self.pair is None else self.pair.read()
        return grpc.ssl_channel_credentials(self._authority(), key, certificate)

    def _authority(self) -> bytes | None:
        return None if self.authority_file is None else self.authority_file.read_bytes()


def authority_fault(file: Path) -> str | None:
    """Say what is wrong with the file. None: it can be used. gRPC would only fail every handshake."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (OSError, ValueError) as failure:
        return f"{file} contains no CA certificate: {failure}"
    return None
