"""Exports of each part are sorted, importable and documented; an import is quick and light."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = [
    "millstream.runtime",
    "millstream.runtime.database",
    "millstream.runtime.extending",
    "millstream.runtime.run",
    "millstream.runtime.wire",
    "millstream.streams",
    "millstream.streams.extending",
    "millstream.providers.ledger",
    "millstream.providers.ledger.inspection",
    "millstream.providers.priority",
    "millstream.providers.priority.jobs",
    "millstream.balancers",
]
HEAVY = ("sqlite3", "psycopg", "pyspark", "pandas", "pyarrow", "rich", "numpy", "aiohttp")
IMPORT_S_MAX = 0.2
IMPORT_TIMES_MAX = 6


def in_groups(names: list[str]) -> list[str]:
    """Sort constants, then classes, then functions: the order that ruff keeps in `__all__`."""
    constants = sorted(name for name in names if name.isupper())
    classes = sorted(name for name in names if not name.isupper() and name[0].isupper())
    return [*constants, *classes, *sorted(name for name in names if name[0].islower())]


@pytest.mark.parametrize("part", PARTS)
def test_exports_are_sorted_importable_and_documented(part: str) -> None:
    module = importlib.import_module(part)
    assert list(module.__all__) == in_groups(module.__all__)
    for name in module.__all__:
        exported = getattr(module, name)
        if isinstance(exported, type) or callable(exported):
            assert exported.__doc__, f"{part}.{name} has no docstring"


def test_import_is_light() -> None:
    code = (
        "import sys, millstream.runtime, millstream.streams\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.real
def test_import_takes_less_than_200_ms(tmp_path: Path) -> None:
    """Measure a second import, with the bytecode that Python keeps by default.

    On a slow machine the limit is a small multiple of the time that the standard library takes.
    """
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    code = (
        "import time; start = time.perf_counter()\n"
        "import asyncio, dataclasses, inspect, logging, signal, ssl, typing\n"
        "between = time.perf_counter()\n"
        "import millstream.runtime, millstream.streams\n"
        "print(between - start, time.perf_counter() - between)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
        ).stdout.split()
        for _ in range(6)
    ]
    library_s, own_s = (min(map(float, column)) for column in zip(*runs, strict=True))
    assert own_s < max(IMPORT_S_MAX, IMPORT_TIMES_MAX * library_s)
