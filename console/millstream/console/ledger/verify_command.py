"""`millstream ledger verify`: verifies all data in a bookie's directory."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from millstream.console.dead_letters import plain
from millstream.providers.ledger.inspection import IDENTITY, LedgerError, Verified, verify
from millstream.runtime.extending import RealDisk

from .lines import print_json, size

__all__ = ["verify_directories"]

FAULTS_MAX = 100  # faults that are printed


async def verify_directories(arguments: argparse.Namespace) -> int:
    """Verify each directory; returns 1 if one is damaged or cannot be verified."""
    found: list[dict[str, Any]] = []
    for directory in (one for name in arguments.directory for one in bookies_in(name)):
        try:
            verified = await asyncio.to_thread(verify, RealDisk(), directory)
        except (LedgerError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            found.append({"directory": directory, "refused": text})
            print(f"millstream ledger verify: {plain(text)}", file=sys.stderr)
            continue
        found.append(facts_of(verified))
        if not arguments.json:
            print_one(verified)
    if arguments.json:
        print_json(found)
    return 1 if any(one.get("refused") or one.get("faults") for one in found) else 0


def bookies_in(name: str) -> list[str]:
    """Return the directory, or the directories of bookies in it, as in `data/ledger/{silo}`."""
    path = Path(name)
    if (path / IDENTITY).exists():
        return [str(path)]
    return sorted(str(one.parent) for one in path.glob(f"*/{IDENTITY}")) or [str(path)]


def facts_of(found: Verified) -> dict[str, Any]:
    """Return the results as plain values."""
    return {
        "directory": found.path,
        "bookie": found.identity.directory,
        "cluster": found.identity.cluster,
        "boot": found.identity.boot,
        "segments": found.segments,
        "frames": found.frames,
        "entries": found.entries,
        "ledgers": found.ledgers,
        "bytes": found.size_bytes,
        "faults": [one._asdict() for one in found.faults],
        "notes": list(found.notes),
    }


def print_one(found: Verified) -> None:
    """Print a line for the directory, and one for each fault and note."""
    identity = found.identity
    print(plain(f"{found.path}: bookie {identity.directory} of {identity.cluster}"))
    print(
        f"  {found.segments} segments, {found.frames:,} frames, {found.entries:,} entries of "
        f"{found.ledgers:,} ledgers, {size(found.size_bytes)}, boot number {identity.boot}"
    )
    for note in found.notes:
        print(plain(f"  note: {note}"))
    for fault in found.faults[:FAULTS_MAX]:
        print(plain(f"  damaged: {fault}"))
    if len(found.faults) > FAULTS_MAX:
        print(f"  ... and {len(found.faults) - FAULTS_MAX} more; --json prints all")
    print(f"  {len(found.faults)} faults" if found.faults else "  no faults")
