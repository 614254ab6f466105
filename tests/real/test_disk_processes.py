"""Locks, limits and kills of real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.runtime.extending import RealDisk

pytestmark = pytest.mark.real

HOLD = """
import sys
from millstream.runtime.extending import RealDisk
held = RealDisk().lock(sys.argv[1])
print("free" if held is None else "held", flush=True)
sys.stdin.read()
"""

FILL = """
import resource, sys
from millstream.runtime.extending import DiskFull, RealDisk
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
file = RealDisk().create(sys.argv[1])
try:
    file.write_at(0, b"x" * 6_000, b"y" * 6_000)
except DiskFull as error:
    print(file.size_bytes, error.filename == sys.argv[1], file.read_at(9_999, 5))
try:
    file.preallocate(20_000)
except DiskFull as error:
    print(file.size_bytes)
"""


def start(program: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, path.as_posix()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_has_no_lock(tmp_path: Path, how: signal.Signals) -> None:
    disk, home = RealDisk(), tmp_path.as_posix()
    with start(HOLD, tmp_path) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert disk.lock(home) is None
        holder.send_signal(how)
        holder.wait(10)
    held = disk.lock(home)
    assert held is not None
    held.release()


def test_a_limit_of_the_process_is_a_full_disk(tmp_path: Path) -> None:
    with start(FILL, tmp_path / "log") as writer:
        out, _ = writer.communicate(timeout=20)
    assert out.splitlines() == ["10000 True b'y'", "10000"]
