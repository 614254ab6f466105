"""The secrets of a cluster. Silos prove the cluster's secret, operators the operator's secret.

This module finds and creates the secrets. `handshake` proves them.

Invariants:

- A secret is never sent, logged or shown in an error.
- Only its user can read a file that holds a secret. The file is complete or does not exist.
- If several silos create a secret at the same time, all of them get the same one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple, Protocol, runtime_checkable

from millstream.runtime.errors import ConfigError

__all__ = [
    "NO_SECRETS",
    "OPERATOR_FILE",
    "OPERATOR_VARIABLE",
    "SECRET_BYTES",
    "SECRET_VARIABLE",
    "KeepsOperatorSecret",
    "KeepsSecret",
    "Secrets",
    "both_secrets",
    "check_operator_secret",
    "derive_operator_secret",
    "find_secret",
    "find_secrets",
    "operator_secret",
    "read_secret",
    "secret_in_file",
]

SECRET_VARIABLE = "MILLSTREAM_SECRET"
OPERATOR_VARIABLE = "MILLSTREAM_OPERATOR_SECRET"
OPERATOR_FILE = "millstream.operator"
"""Name of the file in a membership directory that holds the operator's secret."""
SECRET_BYTES = 32
LETTERS_MIN = 16


class Secrets(NamedTuple):
    """The secrets that a process knows. An empty value means that it does not know that secret.

    A silo knows both. A client knows `operator` if it belongs to an operator.
    """

    cluster: bytes = b""
    operator: bytes = b""


NO_SECRETS = Secrets()


@runtime_checkable
class KeepsSecret(Protocol):
    """A membership table that keeps the cluster's secret for the silos that share it."""

    def secret(self, fresh: bytes, /) -> bytes | Awaitable[bytes]:
        """Return the stored secret. If there is none, store and return `fresh`."""
        ...


@runtime_checkable
class KeepsOperatorSecret(Protocol):
    """A membership table that keeps the operator's secret where operators can find it."""

    def operator_secret(self, fresh: bytes, /) -> bytes | Awaitable[bytes]:
        """Return the stored secret. If there is none, store and return `fresh`."""
        ...


async def find_secrets(
    environ: Mapping[str, str], table: object, random_bytes: Callable[[int], bytes]
) -> Secrets:
    """Return both secrets of a silo.

    Raises the errors of `find_secret`, also for an operator's variable that is too short.
    """
    cluster = await find_secret(environ, table, random_bytes)
    kept = derive_operator_secret(cluster)
    if isinstance(table, KeepsOperatorSecret) and not environ.get(OPERATOR_VARIABLE):
        kept = await _value(table.operator_secret(kept))
    return both_secrets(environ, cluster, kept)


def derive_operator_secret(cluster: bytes) -> bytes:
    """Return the operator's secret that follows from the cluster's."""
    return hmac.digest(cluster, OPERATOR_FILE.encode(), hashlib.sha256)


def both_secrets(environ: Mapping[str, str], cluster: bytes, kept: bytes) -> Secrets:
    """Return both secrets: the variable of the operator's secret takes precedence over `kept`.

    Raises ConfigError if the variable is too short.
    """
    text = environ.get(OPERATOR_VARIABLE) or kept.hex()
    return Secrets(cluster, check_operator_secret(OPERATOR_VARIABLE, text))


async def _value(kept: bytes | Awaitable[bytes]) -> bytes:
    return kept if isinstance(kept, bytes) else await kept


def check_operator_secret(name: str, text: str) -> bytes:
    """Return the operator's secret as bytes. Raises ConfigError if the text is too short."""
    if len(text) < LETTERS_MIN:
        raise ConfigError(
            f"{name} has {len(text)} characters; it must have at least {LETTERS_MIN}, and the same "
            "value at every silo of the cluster and at its operators"
        )
    return text.encode(errors="surrogateescape")


def operator_secret(path: str | Path) -> str:
    """Read the operator's secret from the file in which silos keep it.

    A client that passes this secret to `connect` is an operator: it may also pause, resize and
    repair. The silos create the file in their membership directory, unless the variable
    `MILLSTREAM_OPERATOR_SECRET` is set for them.

    ```python
    secret = operator_secret("/var/lib/shop/membership")
    async with connect("127.0.0.1:7700", operator_secret=secret) as client:
        ...
    ```

    Args:
        path: the membership directory of the silos, or the file `millstream.operator` in it.

    Returns:
        The secret as text.

    Raises:
        ConfigError: the file does not exist, holds no secret, belongs to another user, or other
            users can read it.
        OSError: the file cannot be read.
    """
    file = Path(path)
    file = file / OPERATOR_FILE if file.is_dir() else file
    if not file.exists():
        raise ConfigError(
            f"{file} does not exist: pass the membership directory of silos that were started on "
            f"this machine, or set {OPERATOR_VARIABLE}"
        )
    return secret_in_file(file, b"").hex()


async def find_secret(
    environ: Mapping[str, str], table: object, random_bytes: Callable[[int], bytes]
) -> bytes:
    """Return the cluster's secret from `MILLSTREAM_SECRET`, or from the membership table.

    Raises ConfigError if the variable is too short, or if it is unset and the table keeps no
    secret, and the errors of the table.
    """
    given = read_secret(environ)
    if given:
        return given
    if isinstance(table, KeepsSecret):
        return await _value(table.secret(random_bytes(SECRET_BYTES)))
    raise ConfigError(
        f"the membership table ({type(table).__name__}) stores no secret of the cluster: set "
        f"{SECRET_VARIABLE} to the same text, of at least {LETTERS_MIN} characters, at every silo"
    )


def read_secret(environ: Mapping[str, str]) -> bytes:
    """Return the cluster's secret from its variable; empty if the variable is unset.

    Raises ConfigError if the variable is too short.
    """
    text = environ.get(SECRET_VARIABLE, "")
    if 0 < len(text) < LETTERS_MIN:
        raise ConfigError(
            f"{SECRET_VARIABLE} has {len(text)} characters; it must have at least "
            f"{LETTERS_MIN}, and the same value at every silo of the cluster"
        )
    return text.encode(errors="surrogateescape")


def secret_in_file(path: Path, fresh: bytes) -> bytes:
    """Return the secret in a file, and create the file if it does not exist.

    Membership tables use this function to keep a secret of the cluster: the cluster's secret in a
    method `secret(fresh)`, the operator's secret in a method `operator_secret(fresh)`. The file has
    mode 0600 and is created as a whole. If several processes create it at the same time, all of
    them get the same secret.

    Args:
        path: the file, in a directory that exists.
        fresh: at least 32 random bytes, which become the secret if there is no file.

    Returns:
        The secret in the file, which is not `fresh` if the file existed.

    Raises:
        ConfigError: the file is no plain file, belongs to another user, can be read by other users,
            or holds no secret of 32 bytes.
        OSError: the file cannot be read or created.
    """
    if not path.exists():
        make(path, fresh)
    refuse_open_file(path)
    try:
        found = bytes.fromhex(path.read_text().strip())
    except ValueError:
        found = b""
    if len(found) < SECRET_BYTES:
        raise ConfigError(
            f"{path} has no secret of {SECRET_BYTES} bytes in hex: stop every silo that uses the "
            "file, delete the file, and start the silos again"
        )
    return found


def make(path: Path, fresh: bytes) -> None:
    """Write a draft in the same directory, then link it to the name.

    If another process was first, its file stays.
    """
    descriptor, name = mkstemp(prefix=f"{path.name}.", dir=path.parent)  # mode 0600
    draft = Path(name)
    try:
        os.write(descriptor, fresh.hex().encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def refuse_open_file(path: Path) -> None:
    """Raise ConfigError for a file that other users can read or have made."""
    if os.name != "posix":
        return
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} holds a secret of the cluster, and is not a regular file")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{path} holds a secret of the cluster, and other users can read it (mode "
            f"{mode:04o}): run chmod 600, or better, delete the file while no silo runs, and the "
            "silos make a new one"
        )
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} holds a secret of the cluster, and belongs to user {found.st_uid}, not "
            f"{os.geteuid()}: run all silos of a directory as one user"
        )
