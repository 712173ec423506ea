"""Makes the cluster's own certificate authority.

An authority is made together with the cluster's token. The ledger and the head keep both, so that another laptop can
add a host. Each host gets one file (see :mod:`remote_agent.tls`): its private key, its certificate, the authority's.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime

from cryptography import x509  # asyncssh's own requirement
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, tzinfo=UTC)
"""Validity of certificates. It is long, since hosts' clocks may be years off (a board without a battery starts in
1970); ``down`` ends it by deleting the authority."""

_OWN = ("localhost", "127.0.0.1", "::1")
"""Names by which processes of one host connect to each other."""

Key = ec.EllipticCurvePrivateKey


def create(cluster: str) -> str:
    """Make a new authority; returns its private key and its certificate, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"{cluster}'s authority"
    return _private(key) + _public(_signed(name, key.public_key(), name, key))


def certificate(authority: str, host: str, addresses: Iterable[str]) -> str:
    """Make a host's file, in PEM: a new private key, its certificate for the host's addresses, and the authority's.

    Raises:
        ValueError: :func:`create` did not make this authority.
    """
    signer, root, issuer = _read(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names = tuple(dict.fromkeys((host, *_OWN, *(address.partition("%")[0] for address in addresses))))
    return _private(key) + _public(_signed(host, key.public_key(), issuer, signer, names)) + _public(root)


def is_one(text: str) -> bool:
    """Whether a host may have kept this for us: an authority as :func:`create` makes it."""
    try:
        _read(text)
    except ValueError:
        return False
    return True


def _read(authority: str) -> tuple[Key, x509.Certificate, str]:
    """Its key, its certificate and its name. Raises ValueError."""
    try:
        signer = serialization.load_pem_private_key(authority.encode(), password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    root = x509.load_pem_x509_certificate(authority[authority.index("-----BEGIN CERTIFICATE") :].encode())
    names = root.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not isinstance(signer, Key) or root.public_key() != signer.public_key() or len(names) != 1:
        raise ValueError("not an authority of ours")
    return signer, root, str(names[0].value)


def _signed(
    subject: str, key: ec.EllipticCurvePublicKey, issuer: str, signer: Key, names: tuple[str, ...] = ()
) -> x509.Certificate:
    """Make a certificate for a host's ``names``; an authority has none."""
    builder = x509.CertificateBuilder(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
        key,
        x509.random_serial_number(),
        _BEGIN,
        _END,
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _general(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _private(key: Key) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _public(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
