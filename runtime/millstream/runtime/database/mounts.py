"""The check that a directory can hold SQLite files.

SQLite's write-ahead log needs shared memory and file locks, which network file systems do not
provide. A directory on a network file system is therefore refused before a file is created.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from millstream.runtime.errors import ConfigError

__all__ = ["NETWORK_TYPES", "mount_type", "refuse_network_mount"]

NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs"),
        *("glusterfs", "fuse.glusterfs", "fuse.ceph", "fuse.sshfs", "fuse.s3fs", "fuse.rclone"),
        *("fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2", "fuse.davfs", "davfs", "davfs2"),
    }
)
_MOUNTS = Path("/proc/mounts")
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text


def mount_type(path: PurePosixPath, mounts: str) -> str:
    """Return the file system type of an absolute path, from the text of `/proc/mounts`, or "".

    The deepest mount point wins. Of two mounts on one point the later one wins, because it hides
    the other.
    """
    found, depth = "", -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = PurePosixPath(_unescape(fields[1]))
        if path.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = fields[2], len(point.parts)
    return found


def refuse_network_mount(path: Path) -> None:
    """Raise ConfigError if a resolved path is on a network mount."""
    if not _MOUNTS.exists():
        return
    kind = mount_type(PurePosixPath(path), _MOUNTS.read_text(errors="replace"))
    if kind in NETWORK_TYPES:
        text = f"{path} is on a network mount ({kind}); SQLite needs a local disk"
        raise ConfigError(f"{text}: name a directory on a local disk")
