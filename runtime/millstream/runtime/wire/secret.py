"""The secrets of a cluster: by one its silos know each other, by the other they know operators.

Owns: where they come from. Not: how they are proved (`handshake`). Invariants: a secret is never
sent, logged or part of an error; a file that holds one is its user's alone, and is whole or not
there; of several silos that make one at once, one comes first for all.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Mapping
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
    "check_operator_secret",
    "find_secret",
    "find_secrets",
    "operator_secret",
    "secret_in_file",
]

SECRET_VARIABLE = "MILLSTREAM_SECRET"
OPERATOR_VARIABLE = "MILLSTREAM_OPERATOR_SECRET"
OPERATOR_FILE = "millstream.operator"
"""The file of a membership directory that holds the operator's secret."""
SECRET_BYTES = 32
LETTERS_MIN = 16


class Secrets(NamedTuple):
    """The secrets that a process knows; empty: it does not know that one.

    A silo knows both. A client knows `operator` if it is an operator's.
    """

    cluster: bytes = b""
    operator: bytes = b""


NO_SECRETS = Secrets()


@runtime_checkable
class KeepsSecret(Protocol):
    """A membership table that keeps the cluster's secret for the silos that share it."""

    def secret(self, fresh: bytes, /) -> bytes:
        """The secret that is kept; from now on `fresh` if there is none yet."""
        ...


@runtime_checkable
class KeepsOperatorSecret(Protocol):
    """A membership table that keeps the operator's secret where operators find it."""

    def operator_secret(self, fresh: bytes, /) -> bytes:
        """The secret that is kept; from now on `fresh` if there is none yet."""
        ...


def find_secrets(
    environ: Mapping[str, str], table: object, random_bytes: Callable[[int], bytes]
) -> Secrets:
    """Both secrets of a silo. Raises as `find_secret`, for a variable that is too short, too."""
    cluster = find_secret(environ, table, random_bytes)
    text = environ.get(OPERATOR_VARIABLE, "")
    if not text:
        kept = hmac.digest(cluster, OPERATOR_FILE.encode(), hashlib.sha256)
        if isinstance(table, KeepsOperatorSecret):
            kept = table.operator_secret(kept)
        text = kept.hex()
    return Secrets(cluster, check_operator_secret(OPERATOR_VARIABLE, text))


def check_operator_secret(name: str, text: str) -> bytes:
    """The operator's secret as it is proved, of its text. Raises ConfigError: it is too short."""
    if len(text) < LETTERS_MIN:
        raise ConfigError(
            f"{name} has {len(text)} characters; it must have {LETTERS_MIN} or more, the same at "
            "every silo of the cluster and at its operators"
        )
    return text.encode(errors="surrogateescape")


def operator_secret(path: str | Path) -> str:
    """The operator's secret for `connect`, from the file in which silos keep it.

    Args:
        path: `millstream.operator`, or the membership directory that has it.

    Raises ConfigError: it is not there, others may read it, or it holds no secret; OSError.
    """
    file = Path(path)
    file = file / OPERATOR_FILE if file.is_dir() else file
    if not file.exists():
        raise ConfigError(
            f"{file} is not there: name the membership directory of silos that were started on "
            f"this machine, or set {OPERATOR_VARIABLE}"
        )
    return secret_in_file(file, b"").hex()


def find_secret(
    environ: Mapping[str, str], table: object, random_bytes: Callable[[int], bytes]
) -> bytes:
    """The cluster's secret: from `MILLSTREAM_SECRET`, or kept by the membership table.

    Raises ConfigError: it is too short, or nobody keeps one.
    """
    text = environ.get(SECRET_VARIABLE, "")
    if text:
        if len(text) < LETTERS_MIN:
            raise ConfigError(
                f"{SECRET_VARIABLE} has {len(text)} characters; it must have {LETTERS_MIN} or more,"
                " the same at every silo of the cluster"
            )
        return text.encode(errors="surrogateescape")
    if isinstance(table, KeepsSecret):
        return table.secret(random_bytes(SECRET_BYTES))
    raise ConfigError(
        f"the membership table ({type(table).__name__}) keeps no secret for the cluster: set "
        f"{SECRET_VARIABLE} to one text of {LETTERS_MIN} or more characters at every silo"
    )


def secret_in_file(path: Path, fresh: bytes) -> bytes:
    """The secret in a file of mode 0600; made with `fresh` when it is not there.

    Raises ConfigError: others may read it, or it is no secret; OSError.
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
            f"{path} holds no secret of {SECRET_BYTES} bytes in hex: stop every silo that uses it, "
            "delete it, and start them again"
        )
    return found


def make(path: Path, fresh: bytes) -> None:
    """Write a whole file beside it, then give it the name, unless somebody was first."""
    descriptor, name = mkstemp(prefix=f"{path.name}.", dir=path.parent)  # of mode 0600
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
    """Raise ConfigError for a file that others may read or have made."""
    if os.name != "posix":
        return
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} holds a secret of the cluster, and is not a plain file")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{path} holds a secret of the cluster, and others may read it (mode {mode:04o}): "
            f"chmod 600 it, or better delete it while no silo runs, so that a fresh one is made"
        )
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} holds a secret of the cluster, and belongs to user {found.st_uid}, not "
            f"{os.geteuid()}: run all silos of a directory as one user"
        )
