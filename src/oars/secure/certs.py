"""Certificates: one authority (CA) per cluster. Its key signs the cluster's only certificate and is then discarded.

All members and clients of the cluster share that certificate; nobody can create another one. Import this module only
where certificates are created: cryptography is slow to import.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

VALID = timedelta(days=3650)  # nobody can revoke them: they end with the cluster, as its tokens do
BACKDATED = timedelta(hours=1)  # tolerates clock skew between machines


def cluster_certificates(name: str) -> dict[str, bytes]:
    """ca.pem, cert.pem and key.pem of a cluster, valid for servers and clients."""
    ca_key, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    authority = f"oars {name} authority"
    ca = _signed(authority, authority, ca_key, ca_key, is_authority=True)
    names = [x509.DNSName(name), x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    certificate = _signed(
        name,
        authority,
        key,
        ca_key,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        x509.SubjectAlternativeName(names),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    )
    return {
        "ca.pem": ca.public_bytes(Encoding.PEM),
        "cert.pem": certificate.public_bytes(Encoding.PEM),
        "key.pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }


def _signed(
    subject: str,
    issuer: str,
    key: EllipticCurvePrivateKey,
    issuer_key: EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
    is_authority: bool = False,
) -> x509.Certificate:
    start = datetime.now(UTC) - BACKDATED
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder(_name(issuer), _name(subject), key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + BACKDATED + VALID)
        .add_extension(x509.BasicConstraints(is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name[:64])])
