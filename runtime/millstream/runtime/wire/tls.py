"""Encryption of connections: certificates, the names in them, and their contexts.

Owns `Tls`, the options, and `TlsFiles`, which loads the files again when they change. The names in
certificates are in `certified_name`, and `handshake` compares them with the claims of a process.

Invariants:

- Both sides show a certificate of a common authority, and the connection is encrypted.
- Files that do not fit together, or are written only in part, never replace a working context.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from millstream.runtime.errors import ConfigError

from .certified_name import CertifiedName, name_in, uri_of

__all__ = [
    "TLS_VARIABLE",
    "Tls",
    "TlsFiles",
    "explain",
]

log = logging.getLogger("millstream.tls")

TLS_VARIABLE = "MILLSTREAM_TLS"
"""The environment variable that names a directory for `Tls.in_directory`."""
HANDSHAKE_STEPS_MAX = 10
EXPLAINED = (
    ("certificate has expired", "the certificate of the other process has expired"),
    ("certificate is not yet valid", "the certificate of the other process is not yet valid"),
    ("CERTIFICATE_VERIFY_FAILED", "the certificate of the other process is not of this authority"),
    ("CERTIFICATE_EXPIRED", "the other process says that this certificate has expired"),
    ("CERTIFICATE_REQUIRED", "the other process wants a certificate: pass tls=..."),
    ("UNKNOWN_CA", "the other process does not accept the authority of this certificate"),
    ("BAD_CERTIFICATE", "the other process does not accept this certificate"),
    ("WRONG_VERSION_NUMBER", "the other process does not use TLS"),
    ("RECORD_LAYER_FAILURE", "the other process does not use TLS"),
    ("HTTP_REQUEST", "the other process does not use TLS"),
    ("UNEXPECTED_EOF", "the other process closed the connection during the TLS handshake"),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """The files with which a silo or a client encrypts its connections, and proves its name.

    ```python
    tls = Tls.in_directory("/etc/shop/silo")
    Silo(grains=[Order], address="10.0.0.5:7700", tls=tls)
    ```

    All silos and clients of a cluster use TLS, or none does. `millstream certs init` makes the
    files. When a file changes, new connections use it; open connections stay.

    Attributes:
        certificate: The path of the certificate and its chain, in PEM.
        key: The path of the private key, in PEM, without a password.
        authority: The path of the authority's certificate, in PEM. While an authority is replaced,
            the file has both.
    """

    certificate: str
    key: str
    authority: str

    def __post_init__(self) -> None:
        for one in fields(self):
            path = getattr(self, one.name)
            if not isinstance(path, str | os.PathLike) or not os.fspath(path):
                raise ConfigError(f"Tls({one.name}={path!r}): pass the path of a PEM file")

    @classmethod
    def in_directory(cls, directory: str | os.PathLike[str]) -> Tls:
        """Return the files `tls.crt`, `tls.key` and `ca.crt` of a directory.

        Kubernetes and its certificate managers use these names, and so does `millstream certs`.

        Args:
            directory: The path of the directory.
        """
        path = os.fspath(directory)
        names = ("tls.crt", "tls.key", "ca.crt")
        return cls(*(os.path.join(path, name) for name in names))


def explain(error: Exception) -> str:
    """Return the reason why a handshake failed, for people."""
    text = str(error)
    reason = getattr(error, "verify_message", "") or ""
    for part, meaning in EXPLAINED:
        if part in text:
            return f"{meaning} ({reason})" if reason and reason not in meaning else meaning
    return text or type(error).__name__


class Contexts(NamedTuple):
    """The contexts of one state of the files, for both sides of a connection."""

    opening: ssl.SSLContext
    accepting: ssl.SSLContext
    own: CertifiedName


class TlsFiles:
    """The contexts of `Tls`, of the newest files that fit together.

    Args:
        tls: The files.

    Raises:
        ConfigError: A file is missing or no PEM file, the key is not that of the certificate, or
            the certificate is expired, is not of the authority, or has no name.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._seen = see(tls)
        self._contexts = load(tls)

    @property
    def own(self) -> CertifiedName:
        """The name in the certificate of this process."""
        return self._contexts.own

    def contexts(self) -> Contexts:
        """Return the contexts for a new connection. Reads changed files, which takes some ms."""
        seen = see(self._tls)
        if seen != self._seen:
            self._seen = seen
            try:
                self._contexts = self._replace(load(self._tls))
            except ConfigError as error:
                log.warning("the changed files of TLS are not used: %s", error)
        return self._contexts

    def _replace(self, fresh: Contexts) -> Contexts:
        """Return the new contexts. Raises ConfigError if they are of another cluster or role."""
        if fresh.own[:2] != self.own[:2]:
            raise ConfigError(
                f"{self._tls.certificate} is of {uri_of(fresh.own)}, and this process runs as "
                f"{uri_of(self.own)}: replace it by a certificate of the same cluster and role"
            )
        log.info("new connections use the changed certificate %s", self._tls.certificate)
        return fresh


def see(tls: Tls) -> tuple[object, ...]:
    """Return the state of the files, to notice a change."""
    seen: list[object] = []
    for path in (tls.certificate, tls.key, tls.authority):
        try:
            found = os.stat(path)
        except OSError as error:
            seen.append(error.errno)
        else:
            seen += [found.st_mtime_ns, found.st_size, found.st_ino]
    return tuple(seen)


def load(tls: Tls) -> Contexts:
    """Load the files, and check them by a handshake of this process with itself."""
    opening = fill(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)
    accepting = fill(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)
    try:
        certificate = shake_hands(opening, accepting)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        raise ConfigError(f"{tls.certificate}: {why} (by the authority {tls.authority})") from None
    except ssl.SSLError as error:
        raise ConfigError(f"{tls.certificate} cannot be used: {error}") from None
    own = name_in(certificate)
    if own is None:
        raise ConfigError(
            f"{tls.certificate} needs exactly one name millstream://CLUSTER/silo/NAME or "
            "millstream://CLUSTER/client/NAME among its subject alternative names: millstream "
            "certs issue makes such a certificate"
        )
    return Contexts(opening, accepting, own)


def fill(context: ssl.SSLContext, tls: Tls) -> ssl.SSLContext:
    """Load the files into a context. Raises ConfigError."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name in the certificate is compared instead
    context.verify_mode = ssl.CERT_REQUIRED
    for path in (tls.certificate, tls.key, tls.authority):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        context.load_verify_locations(tls.authority)
    except ssl.SSLError:
        raise ConfigError(f"{tls.authority} is not a PEM file with a certificate") from None
    try:
        context.load_cert_chain(tls.certificate, tls.key, refuse_password)
    except ssl.SSLError as error:
        why = "the key is not that of the certificate" if "MISMATCH" in str(error) else "not PEM"
        text = f"{tls.certificate} and {tls.key} are not a certificate and its key: {why}"
        raise ConfigError(text) from None
    return context


def refuse_password() -> str:
    """Raise ConfigError for a key with a password, instead of a question on the terminal."""
    raise ConfigError("the private key has a password: store it without one, in a file of mode 600")


def shake_hands(opening: ssl.SSLContext, accepting: ssl.SSLContext) -> dict[str, Any] | None:
    """Connect two contexts in memory. Returns the certificate that the opening side sees.

    Raises ssl.SSLError if one side refuses the other.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = opening.wrap_bio(back, there)
    server = accepting.wrap_bio(there, back, server_side=True)
    waiting = [client, server]
    for _ in range(HANDSHAKE_STEPS_MAX):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    if waiting:
        raise ssl.SSLError("the handshake does not end")
    return client.getpeercert()
