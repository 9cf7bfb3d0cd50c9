"""Certificates: one authority (CA) per cluster. Its key signs the cluster's only certificate and is then discarded.

All members and clients of the cluster share that certificate; nobody can create another one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateBuilder, ExtensionType, Name

VALID = timedelta(days=365)
BACKDATED = timedelta(hours=1)  # tolerates clock skew between machines


def cluster_certificates(name: str) -> dict[str, bytes]:
    """ca.pem, cert.pem and key.pem of a cluster, valid for servers and clients."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    ca_key, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    ca = _authority(name, ca_key)
    certificate = _member(name, ca, ca_key, key.public_key())
    return {
        "ca.pem": ca.public_bytes(Encoding.PEM),
        "cert.pem": certificate.public_bytes(Encoding.PEM),
        "key.pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }


def _authority(name: str, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    subject = _name(f"oars {name} authority")
    builder = _builder(subject, subject, key.public_key())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return builder.add_extension(identifier, critical=False).sign(key, SHA256())


def _member(name: str, ca: Certificate, ca_key: EllipticCurvePrivateKey, key: EllipticCurvePublicKey) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID

    names = [x509.DNSName(name), x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    extensions: list[tuple[ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
    ]
    builder = _builder(_name(name), ca.subject, key)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(ca_key, SHA256())


def _builder(subject: Name, issuer: Name, key: EllipticCurvePublicKey) -> CertificateBuilder:
    from cryptography import x509

    start = datetime.now(UTC) - BACKDATED
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(start).not_valid_after(start + BACKDATED + VALID)


def _name(common_name: str) -> Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name[:64])])


def _key_usage(*, signs_certificates: bool) -> ExtensionType:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
