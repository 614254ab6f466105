"""A directory of SQLite files: its identity, its list of files, and its permissions.

`DatabaseDirectory` owns the manifest. `schema` creates the content of files, and `database` checks
that an open file still exists.

Invariants:

- The manifest is created before the first file. It lists a file once the tables of the file are on
  disk. A listed file that is missing, and a file without a manifest, were therefore removed or
  restored by somebody.
- Lines are only appended to the manifest, each with one write, so processes need no lock.
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
    """A directory on a local disk for SQLite files, with a manifest that lists them.

    The constructor creates the directory with mode 0700 if it is missing, and its manifest
    `millstream.manifest`. Several processes may do this at the same time. A directory that contains
    only files of Millstream loses the permissions of other users.

    Args:
        path: the directory.
        env: supplies the id of a new directory.
        ours: prefixes of the file names that the user of this class keeps in the directory. All
            other files are assumed to belong to other programs.

    Attributes:
        path: the absolute path, without symbolic links.
        id: the id of the directory, from its manifest: 16 hexadecimal digits.

    Raises:
        ConfigError: the path is a file or on a network mount, or this user has no permission.
        StorageUnavailable: the manifest is gone although its files exist, or it was replaced.
    """

    def __init__(self, path: str | Path, env: Env, ours: tuple[str, ...]) -> None:
        if not isinstance(path, str | Path) or not str(path):
            raise ConfigError(
                f"{path!r} is not the path of a directory; `.` is the working directory"
            )
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
        """Text that names exactly this directory.

        It is the same for every path to the directory, and different for a copy. It contains the
        id, and the device and inode numbers of this machine.
        """
        return f"directory {self.id}, {device_and_inode(self.path)}"

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A directory with files of other programs may be meant for other users to read.
        if all(name.startswith(self._ours) for name in os.listdir(self.path)):
            keep_private(self.path, 0o700)

    def _read(self) -> tuple[str, frozenset[str]]:
        """Return the id and the listed names, both empty if there is no manifest."""
        try:
            text = self._manifest.read_text(errors="replace")
        except FileNotFoundError:
            return "", frozenset()
        lines = text.splitlines(keepends=True)
        if not lines or not lines[0].startswith(_HEAD) or not lines[0].endswith("\n"):
            raise StorageUnavailable(f"{self._manifest} was emptied or replaced: {REMEDY}")
        # A power failure may leave an incomplete line. Its file is listed again when it is opened.
        return lines[0][len(_HEAD) :].strip(), frozenset(line.strip() for line in lines[1:])

    def _begin(self, env: Env) -> str:
        """Create the manifest of a new directory. If several processes try, the first one wins."""
        found = [name for name in os.listdir(self.path) if self._is_database(name)]
        # Another process may have created manifest and files after `_read`.
        if found and not self._manifest.exists():
            text = f"{self._manifest} is gone, but its files exist: {', '.join(sorted(found))}"
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
        """Check those of these files that are listed in the manifest.

        Args:
            names: file names in the directory. Names that are not listed are ignored.

        Raises:
            StorageUnavailable: a listed file is missing or empty.
        """
        for name in self._read()[1].intersection(names):
            self.require(name)

    def lists(self, name: str) -> bool:
        """Tell whether a file of this name was created here.

        Args:
            name: the file name in the directory.

        Returns:
            True if the manifest lists the file.
        """
        return name in self._read()[1]

    def require(self, name: str) -> None:
        """Check that a file exists and is not empty.

        Args:
            name: the file name in the directory.

        Raises:
            StorageUnavailable: the file is missing or empty.
        """
        path = self.path / name
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:
            raise StorageUnavailable(f"{path} is gone, and its data is lost: {REMEDY}") from None
        if not size_bytes:
            raise StorageUnavailable(f"{path} was emptied, and its data is lost: {REMEDY}")

    def add(self, name: str) -> None:
        """Add a file to the manifest, once its tables are on disk.

        Blocks until the line is durable.

        Args:
            name: the file name in the directory.

        Raises:
            OSError: the disk failed.
        """
        # The previous line may be incomplete.
        write_line(self._manifest, f"\n{name}\n", os.O_APPEND)


def device_and_inode(path: Path) -> str:
    """Return text that distinguishes a file or directory from all others on this machine.

    A copy has another text than its original. A renamed file keeps its text.

    Args:
        path: a file or directory that exists.

    Returns:
        The device and inode numbers, as text.

    Raises:
        OSError: the path does not exist or cannot be read.
    """
    found = path.stat()
    return f"device {found.st_dev:x} inode {found.st_ino}"


def write_line(path: Path, line: str, how: int) -> None:
    """Write a line durably with one write. `how` has further flags of `os.open`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_private(path: Path, mode: int) -> None:
    """Remove the permissions of other users from a file or directory of this user."""
    if os.name != "posix":
        return
    found = path.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(mode)


def sync_directory(path: Path) -> None:
    """Make the names of new files durable. A commit is lost if its log file has no durable name."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why_unusable(path: Path, error: OSError) -> str:
    """Return the reason why a directory cannot be used, with advice."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        blocking = next((one for one in (path, *path.parents) if one.is_file()), path)
        return f"{path} cannot be a directory: {blocking} is a file. Name another directory"
    if error.errno in _NO_PERMISSION:
        return (
            f"{path}: {error.strerror}. Make it writable for this user, or name another directory"
        )
    if error.errno in _NO_ROOM:
        return f"{path}: {error.strerror}. Free space on that disk, or name another directory"
    return f"{path}: {error.strerror or error}. Name a directory on a local disk"
