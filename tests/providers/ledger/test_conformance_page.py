"""The conformance page names every row once, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "internals" / "ledger_conformance.md"
ROWS = 96
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows() -> list[tuple[int, str]]:
    """Return the number of each row, and its column of tests."""
    return [(int(number), where) for number, _, _, where in ROW.findall(PAGE.read_text())]


def test_every_row_is_named_once() -> None:
    assert [number for number, _ in rows()] == list(range(1, ROWS + 1))


def test_every_row_names_tests_that_exist_or_says_why_there_is_none() -> None:
    for number, where in rows():
        named = TEST.findall(where)
        assert named or where.startswith("Not here: "), f"row {number}"
        for path, name in named:
            assert f"def {name}(" in (HERE / path).read_text(), f"{number}: {path}::{name}"


def test_the_page_says_how_many_are_tested() -> None:
    tested = sum(bool(TEST.findall(where)) for _, where in rows())
    text = f"{tested} rows are tested, {ROWS - tested} do not apply."
    assert text in PAGE.read_text() and tested >= 60
