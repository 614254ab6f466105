"""The page of conformance names each row once, with tests that exist and belong to the row."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "internals" / "conformance.md"
ROWS = 145
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def rows() -> list[tuple[int, str]]:
    """Return the number of each row, with its test or the reason why it has none."""
    return [(int(number), where) for number, _, _, where in ROW.findall(PAGE.read_text())]


@cache
def module(name: str) -> ModuleType:
    return importlib.import_module(f"tests.streams.conformance.{name.removesuffix('.py')}")


def rows_of(test: object) -> set[int]:
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    return {number for mark in marks if mark.name == "row" for number in mark.args}


def test_every_row_is_named_once() -> None:
    assert [number for number, _ in rows()] == list(range(1, ROWS + 1))


def test_every_named_test_exists_and_is_of_the_row() -> None:
    for number, where in rows():
        for file, name in TEST.findall(where):
            assert number in rows_of(getattr(module(file), name, None)), f"{number}: {file}::{name}"


HAND_OVER = re.compile(r"^\| B[89]\.(\d+) \| .+ \| (.+) \|$", re.MULTILINE)
ANYWHERE = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def test_every_row_of_the_hand_over_names_tests_that_exist() -> None:
    rows = HAND_OVER.findall(PAGE.read_text())
    assert [int(number) for number, _ in rows] == [*range(1, 29), *range(7, 15)]
    for number, where in rows:
        named = ANYWHERE.findall(where)
        assert named, f"row {number} names no test"
        for path, name in named:
            text = (ROOT / path).read_text()
            assert not name or f"def {name}(" in text, f"{number}: {path}::{name}"


def test_every_test_is_named_in_its_rows() -> None:
    named = {(number, file, name) for number, where in rows() for file, name in TEST.findall(where)}
    for path in sorted(HERE.glob("test_*.py")):
        for name, test in vars(module(path.name)).items():
            if name.startswith("test_"):
                assert {(row, path.name, name) for row in rows_of(test)} <= named


def test_the_page_counts_its_rows() -> None:
    absent = sum(where.startswith("Not here: ") for _, where in rows())
    text = f"{ROWS - absent} rows are tested, {absent} do not apply."
    assert text in PAGE.read_text() and "Not yet: " not in PAGE.read_text()


def test_a_row_without_a_test_says_why() -> None:
    for number, where in rows():
        if not TEST.search(where):
            assert where.startswith(("Not here: ", "Not yet: ")), f"row {number} says nothing"
