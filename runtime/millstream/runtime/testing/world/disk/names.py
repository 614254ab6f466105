"""The names of files: as programs see them, and as they would survive a crash.

This module owns `Names` and `Change`. A change of a name is durable once its directory was synced
(for a rename, the directory of the target). Until then a crash keeps any of the changes, each one
whole. Directories are durable at once.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from millstream.runtime.testing.world.env import Random

from .content import Content, some_of

__all__ = ["Names", "clean"]


class Change(NamedTuple):
    """A name was made (no source), removed (no target), or changed."""

    source: str | None
    target: str | None
    content: Content

    @property
    def directory(self) -> str:
        return posixpath.dirname(self.target or self.source or "")

    def do(self, files: dict[str, Content]) -> None:
        if self.source is not None and files.get(self.source) is self.content:
            del files[self.source]
        if self.target is not None:
            files[self.target] = self.content


class Names:
    """A tree of files. Paths are clean: absolute, without `.` and `..`."""

    def __init__(self) -> None:
        self._files: dict[str, Content] = {}
        self._durable: dict[str, Content] = {}
        self._changes: list[Change] = []
        self._dirs: dict[str, None] = {"/": None}

    def find(self, path: str) -> Content:
        """Return the file of a name. Raises FileNotFoundError, IsADirectoryError."""
        if path in self._dirs:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        content = self._files.get(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return content

    def create(self, path: str, content: Content) -> None:
        """Add a name. Raises FileExistsError, FileNotFoundError."""
        self.refuse_missing(posixpath.dirname(path))
        if path in self._files or path in self._dirs:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._change(Change(None, path, content))

    def rename(self, source: str, target: str) -> None:
        """Change a name. Raises FileNotFoundError, IsADirectoryError."""
        content = self.find(source)
        self.refuse_missing(posixpath.dirname(target))
        if target in self._dirs:
            raise IsADirectoryError(errno.EISDIR, "is a directory", target)
        if source != target:
            self._change(Change(source, target, content))

    def unlink(self, path: str) -> None:
        """Remove a name. Raises FileNotFoundError, IsADirectoryError."""
        self._change(Change(path, None, self.find(path)))

    def _change(self, change: Change) -> None:
        change.do(self._files)
        self._changes.append(change)

    def make_dir(self, path: str) -> None:
        """Add a directory, and those above it. Raises NotADirectoryError."""
        if path in self._files:
            raise NotADirectoryError(errno.ENOTDIR, "is a file", path)
        if path != "/":
            self.make_dir(posixpath.dirname(path))
        self._dirs[path] = None

    def inside(self, path: str) -> list[str]:
        """Return the names in a directory. Raises FileNotFoundError."""
        self.refuse_missing(path)
        found = [one for one in (*self._files, *self._dirs) if posixpath.dirname(one) == path]
        return sorted(posixpath.basename(one) for one in found if one != "/")

    def refuse_missing(self, directory: str) -> None:
        """Check that a directory exists. Raises FileNotFoundError, NotADirectoryError."""
        if directory in self._files:
            raise NotADirectoryError(errno.ENOTDIR, "is a file", directory)
        if directory not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)

    def sync(self, directory: str) -> None:
        """Make the changes in a directory durable."""
        self._end(directory, lambda changes: changes)

    def fail_sync(self, directory: str, rng: Random) -> None:
        """Make some of the changes in a directory durable. The others never will be."""
        self._end(directory, lambda changes: some_of(changes, rng))

    def _end(self, directory: str, kept: Callable[[list[Change]], list[Change]]) -> None:
        mine = [change for change in self._changes if change.directory == directory]
        self._changes = [change for change in self._changes if change.directory != directory]
        for change in kept(mine):
            change.do(self._durable)
            if change.source is not None:  # an earlier name of the file does not return
                self._changes = [
                    other
                    for other in self._changes
                    if (other.target, other.content) != (change.source, change.content)
                ]

    def crash(self, rng: Random) -> None:
        """Lose some of the changes that are not durable, by chance, in names and files."""
        for change in some_of(self._changes, rng):
            change.do(self._durable)
        self._changes = []
        self._files = dict(self._durable)
        for content in self.contents():
            content.crash(rng)

    def contents(self) -> Iterator[Content]:
        """Yield every file that has a name."""
        return iter({id(content): content for content in self._files.values()}.values())

    def has(self, content: Content) -> bool:
        """Return whether a file has a name."""
        return any(content is one for one in self._files.values())

    def below(self, directory: str) -> dict[str, Content]:
        """Return all files under a directory, by path."""
        prefix = directory.rstrip("/") + "/"
        return {path: one for path, one in self._files.items() if path.startswith(prefix)}

    def replace_below(self, directory: str, files: Mapping[str, Content]) -> None:
        """Replace the files under a directory, at once and durably."""
        for path in self.below(directory):
            self.unlink(path)
        for path, content in files.items():
            self.make_dir(posixpath.dirname(path))
            self._change(Change(None, path, content))
        self._settle_below(directory)

    def _settle_below(self, directory: str) -> None:
        prefix = directory.rstrip("/") + "/"
        for change in self._changes:
            if (change.directory + "/").startswith(prefix):
                self.sync(change.directory)

    def check(self) -> None:
        """Assert that every name is in a directory, and that every file is consistent."""
        for path in (*self._files, *self._durable):
            assert posixpath.dirname(path) in self._dirs, path
        for content in self.contents():
            content.check()


def clean(path: str) -> str:
    """Return an absolute path without empty parts, `.` and `..`. Raises ValueError if it is
    empty.
    """
    if not path:
        raise ValueError("an empty path names no file")
    return posixpath.normpath("/" + path.lstrip("/"))
