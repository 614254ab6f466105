"""A private authority in a directory, and the certificates that it signs.

The directory has `ca.crt` and `ca.key`. Each certificate has a directory with `tls.crt`, `tls.key`
and `ca.crt`, as `Tls.in_directory` reads it.

Invariants: a key has mode 0600. A file is replaced as a whole, and an authority is never replaced.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from millstream.runtime import CertifiedName, ConfigError, Role
from millstream.runtime.extending import show_text, uri_of

__all__ = ["Shown", "init_authority", "issue", "read_certificate"]

AUTHORITY_DAYS = 3650
BACKDATED = timedelta(hours=1)
"""How far the validity of a certificate begins in the past, for clocks that are late."""
NAME_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Shown:
    """The facts of a certificate that people want to know."""

    names: tuple[str, ...]
    issuer: str
    valid_from: datetime
    valid_until: datetime


def read_certificate(path: Path) -> Shown:
    """Read a certificate. Raises ConfigError for a file without one, and OSError."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ConfigError(f"{path} is not a certificate in PEM") from None
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    issuer = found.issuer.rfc4514_string()
    return Shown(tuple(uris), issuer, found.not_valid_before_utc, found.not_valid_after_utc)


def init_authority(directory: Path, cluster: str, now: datetime) -> None:
    """Make the key and the certificate of an authority for one cluster.

    Raises ConfigError if the directory has files, or the cluster cannot have a certificate.
    """
    check_name(cluster)
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(
            f"{directory} has files: name a new directory, since an authority is never replaced"
        )
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = subject_of(f"authority of {cluster}", cluster)
    made = (
        begin(subject, subject, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    write_whole(directory / "ca.key", pem_of(key))
    write_whole(directory / "ca.crt", made.public_bytes(Encoding.PEM))


def issue(directory: Path, role: Role, name: str, into: Path, now: datetime, days: int) -> str:
    """Make a certificate of an authority, with its key, or replace it.

    Args:
        directory: the directory of the authority.
        role: the role of the process, SILO or CLIENT.
        name: the name of the process.
        into: the directory for `tls.crt`, `tls.key` and `ca.crt`.
        now: the time of this call.
        days: the days of its validity.

    Returns:
        The name in the certificate, as a URI.

    Raises:
        ConfigError: the authority is missing or cannot be read, or the name cannot be used.
    """
    check_name(name)
    authority, authority_key = load_authority(directory)
    of_cluster = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(of_cluster) != 1:
        raise ConfigError(f"{directory / 'ca.crt'} was not made by millstream certs init")
    cluster = str(of_cluster[0].value)
    uri = uri_of(CertifiedName(cluster, role, name))
    key = ec.generate_private_key(ec.SECP256R1())
    # two authorities of one cluster have the same subject while one replaces the other
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
    made = (
        begin(subject_of(name, cluster), authority.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(by, critical=False)
        .sign(authority_key, SHA256())
    )
    into.mkdir(parents=True, exist_ok=True)
    write_whole(into / "tls.key", pem_of(key))
    write_whole(into / "tls.crt", made.public_bytes(Encoding.PEM))
    write_whole(into / "ca.crt", authority.public_bytes(Encoding.PEM))
    return uri


def load_authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the certificate and the key of an authority. Raises ConfigError."""
    try:
        certificate = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
        key = load_pem_private_key((directory / "ca.key").read_bytes(), None)
    except FileNotFoundError as error:
        text = f"{error.filename} does not exist: make an authority by millstream certs init"
        raise ConfigError(text) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the authority in {directory} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{directory / 'ca.key'} was not made by millstream certs init")
    return certificate, key


def check_name(name: str) -> None:
    """Raise ConfigError for a name that is not fit for a certificate and a directory."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable() or name in (".", ".."):
        raise ConfigError(
            f"{show_text(repr(name))} is not a name of 1 to {NAME_CHARS_MAX} printable characters"
        )
    if "/" in name or os.sep in name:
        raise ConfigError(f"{show_text(repr(name))} has a slash, and is also a name of a directory")


def subject_of(name: str, cluster: str) -> x509.Name:
    """Return the subject of a certificate: its name, and the cluster as organization."""
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster)
    common = x509.NameAttribute(NameOID.COMMON_NAME, name[:NAME_CHARS_MAX])
    return x509.Name([organization, common])


def begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    """Return a certificate that has no extensions and no signature yet."""
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - BACKDATED,
        not_valid_after=now + timedelta(days=days),
    )


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM without a password."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file with mode 0600, and put it in its place as a whole."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(draft, path)
