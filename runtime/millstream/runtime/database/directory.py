"""A directory of SQLite files: its identity, what it should hold, and who may read it.

Owns: `DatabaseDirectory`, the manifest. Not: what is in the files (`schema`), whether an open one
is still there (`database`). Invariants: a manifest is made before the first file and lists a file
once its tables are on disk; so a file that is listed and not there, or there without a manifest,
was taken away by somebody. Lines are only ever added, each by one write, so processes need no lock.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, StorageUnavailable

from .mounts import refuse_network_mount

__all__ = [
    "MANIFEST",
    "REMEDY",
    "DatabaseDirectory",
    "device_and_inode",
    "keep_private",
    "sync_directory",
]

MANIFEST = "millstream.manifest"
REMEDY = (
    "stop every silo that uses the directory, then restore the whole directory from a backup,"
    " or start with a fresh one"
)
_HEAD = "millstream 1 "
_NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class DatabaseDirectory:
    """A directory on a local disk, made when missing.

    Args:
        ours: how the names begin of what those who use it keep there; anything else is a person's.
    Raises ConfigError (a file, a network mount, no permission), StorageUnavailable (its manifest is
    gone, or is none).
    """

    def __init__(self, path: str | Path, env: Env, ours: tuple[str, ...]) -> None:
        if not isinstance(path, str | Path) or not str(path):
            raise ConfigError(f"{path!r} is no directory's path: `.` is the working directory")
        self.path = Path(path).resolve()
        self._manifest = self.path / MANIFEST
        self._ours = (MANIFEST, *ours)
        refuse_network_mount(self.path)
        try:
            self._make()
            self.id = self._read()[0] or self._begin(env)
        except OSError as error:
            raise ConfigError(why_unusable(self.path, error)) from error

    @property
    def identity(self) -> str:
        """Names this very directory: the same by every path to it, another for a copy of it.

        Device and inode, as this machine numbers them, tell a copy; a mount keeps them.
        """
        return f"directory {self.id}, {device_and_inode(self.path)}"

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A directory that somebody keeps other things in may be meant for others to read.
        if all(name.startswith(self._ours) for name in os.listdir(self.path)):
            keep_private(self.path, 0o700)

    def _read(self) -> tuple[str, frozenset[str]]:
        """Identity and listed names; both empty when there is no manifest."""
        try:
            text = self._manifest.read_text(errors="replace")
        except FileNotFoundError:
            return "", frozenset()
        lines = text.splitlines(keepends=True)
        if not lines or not lines[0].startswith(_HEAD) or not lines[0].endswith("\n"):
            raise StorageUnavailable(f"{self._manifest} was emptied or replaced: {REMEDY}")
        # What a power cut left of a line is no name; that file is listed again when it is opened.
        return lines[0][len(_HEAD) :].strip(), frozenset(line.strip() for line in lines[1:])

    def _begin(self, env: Env) -> str:
        """Make the manifest of a fresh directory; of several processes one comes first."""
        found = [name for name in os.listdir(self.path) if self._is_database(name)]
        # Another process may have made manifest and files since we looked for it.
        if found and not self._manifest.exists():
            text = f"{self._manifest} is gone, which belongs to {', '.join(sorted(found))}"
            raise StorageUnavailable(f"{text}: {REMEDY}")
        draft = self.path / f"{MANIFEST}.{env.new_id():x}"
        write_line(draft, f"{_HEAD}{env.new_id():016x}\n", os.O_EXCL)
        try:
            with suppress(FileExistsError):
                os.link(draft, self._manifest)
        finally:
            draft.unlink()
        sync_directory(self.path)
        return self._read()[0]

    def _is_database(self, name: str) -> bool:
        return name.endswith(".db") and name.startswith(self._ours)

    def check(self, names: Iterable[str]) -> None:
        """Raise StorageUnavailable if one of the names is listed and is not there, or is empty."""
        for name in self._read()[1].intersection(names):
            self.require(name)

    def lists(self, name: str) -> bool:
        """Was a file of this name made here?"""
        return name in self._read()[1]

    def require(self, name: str) -> None:
        """Raise StorageUnavailable if a listed file is not there, or is empty."""
        path = self.path / name
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:
            raise StorageUnavailable(f"{path} is gone, with what was stored: {REMEDY}") from None
        if not size_bytes:
            raise StorageUnavailable(f"{path} was emptied, stored things are lost: {REMEDY}")

    def add(self, name: str) -> None:
        """List a file that was made."""
        # It may follow on half a line.
        write_line(self._manifest, f"\n{name}\n", os.O_APPEND)


def device_and_inode(path: Path) -> str:
    """What tells a file or directory from every other one that exists on this machine."""
    found = path.stat()
    return f"device {found.st_dev:x} inode {found.st_ino}"


def write_line(path: Path, line: str, how: int) -> None:
    """Write a line durably, in one piece."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_private(path: Path, mode: int) -> None:
    """Take the permissions of others away from what is this user's and has them."""
    if os.name != "posix":
        return
    found = path.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(mode)


def sync_directory(path: Path) -> None:
    """Make the names of new files durable: a commit is lost with a log file that has no name."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why_unusable(path: Path, error: OSError) -> str:
    """What is wrong with a directory, and what to do."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        blocking = next((one for one in (path, *path.parents) if one.is_file()), path)
        return f"{path} cannot be a directory: {blocking} is a file. Name another one"
    if error.errno in _NO_PERMISSION:
        return f"{path}: {error.strerror}. Make it writable for this user, or name another one"
    if error.errno in _NO_ROOM:
        return f"{path}: {error.strerror}. Make room on that disk, or name another directory"
    return f"{path}: {error.strerror or error}. Name a directory on a local disk"
