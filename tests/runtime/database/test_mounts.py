from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import ConfigError
from millstream.runtime.database import mounts

TABLE = """\
/dev/sda1 / ext4 rw 0 0
proc /proc proc rw 0 0
srv:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/local xfs rw 0 0
me@host:/ /mnt/with\\040space fuse.sshfs rw 0 0
/dev/sdc1 /data ext4 rw 0 0
//srv/share /data cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/home/me/x", "nfs4"),
        ("/homework", "ext4"),
        ("/home/local/x", "xfs"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/data", "cifs"),
    ],
)
def test_mount_type_is_that_of_the_deepest_and_latest_mount_point(path: str, kind: str) -> None:
    assert mounts.mount_type(PurePosixPath(path), TABLE) == kind


def test_mount_type_is_empty_when_no_mount_point_covers_the_path() -> None:
    assert mounts.mount_type(PurePosixPath("/x"), "broken\n/dev/sda /y ext4 rw 0 0\n") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs"])
def test_stores_refuse_a_network_mount(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/sda / ext4 rw 0 0\nsrv:/ {tmp_path.resolve()} {kind} rw 0 0\n")
    monkeypatch.setattr(mounts, "_MOUNTS", table)
    for opens in (SqliteStateStore, SqliteMembershipTable):
        with pytest.raises(ConfigError, match=kind):
            opens(tmp_path / "new")
    assert not (tmp_path / "new").exists()
