"""The processor time and memory of a process, by the files of its operating system. Pure.

This module reads the text of Linux' files, among them the limits of a container (cgroups, version
2). `env` opens the files; a simulation gives figures of its own. On other systems the files are
missing, so the figures of memory are None.

The files suffice, so no library is needed. A library such as psutil reports the memory of the
machine, not the limits of the container, which matter more.

Invariants:

- A figure that is missing or cannot be read is None, never 0 and never an error.
- The limit of the container replaces a higher figure of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Usage", "find_usage"]

GROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources of one process at one moment. None: not known.

    Attributes:
        cpu_s: Processor time that the process has used since its start, in seconds.
        cores: Processors that the container permits, such as 0.5. None: no limit.
        memory_used: Bytes of memory that the process uses.
        memory_available: Bytes of memory that processes can still get.
        memory_total: Bytes of memory of the machine, or the limit of the container.
    """

    cpu_s: float | None = None
    cores: float | None = None
    memory_used: int | None = None
    memory_available: int | None = None
    memory_total: int | None = None


def find_usage(read: Callable[[str], str], cpu_s: float, page_bytes: int) -> Usage:
    """Return the resources of this process.

    Args:
        read: Returns the beginning of a file, or an empty text if it cannot be read.
        cpu_s: The processor time that this process has used, in seconds.
        page_bytes: The size of a page of memory.
    """
    machine, group = parse_table(read("/proc/meminfo")), find_group(read)
    total, available = machine.get("MemTotal"), machine.get("MemAvailable")
    limit, charged = parse_count(read(f"{group}/memory.max")), None
    if limit is not None and (total is None or limit < total):
        total, charged = limit, parse_count(read(f"{group}/memory.current"))
    if total is not None and charged is not None:
        # caches of files are charged too, and are freed when memory is short
        cached = parse_table(read(f"{group}/memory.stat")).get("inactive_file", 0)
        left = max(0, total - max(0, charged - cached))
        available = left if available is None else min(left, available)
    pages = parse_count([*read("/proc/self/statm").split(), "", ""][1])
    return Usage(
        cpu_s=cpu_s,
        cores=parse_quota(read(f"{group}/cpu.max")),
        memory_used=None if pages is None else pages * page_bytes,
        memory_available=available,
        memory_total=total,
    )


def find_group(read: Callable[[str], str]) -> str:
    """Return the folder of the control group of this process (version 2)."""
    for line in read("/proc/self/cgroup").splitlines():
        if line.startswith("0::/") and ".." not in line:
            return (GROUPS + line.removeprefix("0::")).rstrip("/")
    return GROUPS


def parse_table(text: str) -> dict[str, int]:
    """Return the bytes of each line `name: count kB` or `name count`."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, *rest = line.split() or [""]
        count = parse_count(rest[0]) if rest else None
        if count is not None:
            found[name.rstrip(":")] = count * 1_024 if rest[1:] == ["kB"] else count
    return found


def parse_count(text: str) -> int | None:
    """Return a count of bytes, or None for `max` and for anything else."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None


def parse_quota(text: str) -> float | None:
    """Return the processors that a line `quota period` permits, or None for no limit."""
    quota, period = map(parse_count, [*text.split(), "", ""][:2])
    return quota / period if quota and period else None
