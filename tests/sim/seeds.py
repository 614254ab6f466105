"""Seeds that differ between commits, so that each commit tries something new."""

from __future__ import annotations

import shutil
import subprocess

from tests.imports import ROOT

OTHERWISE = 1  # where there is no commit, as in an archive


def seed_of_commit() -> int:
    """Another number for each commit, the same for each run of one."""
    if shutil.which("git") is None:
        return OTHERWISE
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return OTHERWISE if told.returncode else 1 + int(told.stdout[:7], 16)
