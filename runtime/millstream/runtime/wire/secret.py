"""The secret of a cluster, by which its silos know each other.

Owns: where it comes from. Not: how it is proved (`greeting`). Invariants: it is never sent, logged
or part of an error; a file that holds it is its user's alone, and is whole or not there; of several
silos that make it at once, one comes first for all.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from millstream.runtime.errors import ConfigError

__all__ = ["SECRET_BYTES", "SECRET_VARIABLE", "KeepsSecret", "find_secret", "secret_in_file"]

SECRET_VARIABLE = "MILLSTREAM_SECRET"
SECRET_BYTES = 32
LETTERS_MIN = 16


@runtime_checkable
class KeepsSecret(Protocol):
    """A membership table that keeps the cluster's secret for the silos that share it."""

    def secret(self, fresh: bytes, /) -> bytes:
        """The secret that is kept; from now on `fresh` if there is none yet."""
        ...


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
    unique = hashlib.sha256(fresh).hexdigest()[:16]  # says nothing of the secret
    draft = path.with_name(f"{path.name}.{unique}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
        raise ConfigError(f"{path} holds the cluster's secret, and is not a plain file")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{path} holds the cluster's secret, and others may read it (mode {mode:04o}): chmod "
            f"600 it, or better delete it while no silo runs, so that a fresh one is made"
        )
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} holds the cluster's secret, and belongs to user {found.st_uid}, not "
            f"{os.geteuid()}: run all silos of a directory as one user"
        )
