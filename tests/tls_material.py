"""Certificates made for one test: an authority, and servers that it vouches for."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
#: As proxies have it, which are servers to clients and clients to nodes.
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, *CLIENT)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files of one server."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._builder(self._name, self._key.public_key(), age_days=1, life_days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = directory / f"{name}-ca.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        age_days: int = 1,
        life_days: int = 30,
        hosts: tuple[str, ...] = (),
        uses: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.SERVER_AUTH,),
    ) -> CertificateFiles:
        """A server certificate for some host names and addresses; or one for other uses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        usage = x509.ExtendedKeyUsage(uses)
        certificate = (
            self._builder(subject, key.public_key(), age_days=age_days, life_days=life_days)
            .add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(authority, critical=False)
            .add_extension(usage, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = CertificateFiles(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        files.key.chmod(0o600)
        return files

    def issue_client(self, name: str, *, age_days: int = 1, life_days: int = 30) -> Path:
        """A client's certificate and key, in one file."""
        files = self.issue(name, age_days=age_days, life_days=life_days, uses=CLIENT)
        both = self._directory / f"{name}-both.pem"
        both.touch(mode=0o600)
        both.write_bytes(files.cert.read_bytes() + files.key.read_bytes())
        return both

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        age_days: int,
        life_days: int,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - age_days * DAY)
            .not_valid_after(now - age_days * DAY + life_days * DAY)
        )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
