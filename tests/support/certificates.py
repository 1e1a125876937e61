"""Certificates for the tests: an authority, and the certificates that it signs."""

import datetime as dt
import ipaddress
import itertools
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.chassis.identity.tls import Pair

LOOPBACK = ipaddress.IPv4Address("127.0.0.1")


class Authority:
    """Keeps its certificate, and all those that it signs, in a directory of its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._name = _named(name)
        self._directory = directory
        self._made = itertools.count(1)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = directory / "authority.pem"
        self._write(self.file, self._signed(name, self._key, x509.BasicConstraints(True, None)))

    def pair(self, common_name: str, *alternative: x509.GeneralName) -> Pair:
        """A new pair for a process of that name, which is reached by the alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(alternative or [x509.IPAddress(LOOPBACK)])
        stem = f"{common_name}-{next(self._made)}"
        made = Pair(self._directory / f"{stem}.pem", self._directory / f"{stem}.key")
        self._write(made.certificate_file, self._signed(common_name, key, names))
        made.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made

    def _signed(
        self, common_name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_named(common_name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
