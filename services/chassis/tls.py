"""Certificates of a process: one pair for both directions, and the authority that signed its peers.

With an authority both sides must show a certificate (mTLS) and the common name of the caller's is its
identity; without one the channel is encrypted and callers are known by their keys alone. Read at start: a
renewed certificate is taken up by a restart, which costs nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    certificate_file: Path
    key_file: Path
    authority_file: Path | None = None
    server_name: str = ""

    def for_server(self) -> grpc.ServerCredentials:
        pair = (self.key_file.read_bytes(), self.certificate_file.read_bytes())
        return grpc.ssl_server_credentials(
            [pair],
            root_certificates=self._authority(),
            require_client_auth=self.authority_file is not None,
        )

    def for_client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            root_certificates=self._authority(),
            private_key=self.key_file.read_bytes(),
            certificate_chain=self.certificate_file.read_bytes(),
        )

    def _authority(self) -> bytes | None:
        return None if self.authority_file is None else self.authority_file.read_bytes()
