"""The `__init__` of each package states its responsibilities, its first file and its imports."""

from __future__ import annotations

import ast
import re

import pytest
from tests.imports import area_of, packages, packages_imported
from tests.test_rooms import FLOORS

PACKAGES = packages()
READING = re.compile(r"Reading\s+starts\s+at\s+`([^`]+)`")
IMPORTS = re.compile(r"^May import ((?:[^`.]|`[^`]*`)+)\.", re.MULTILINE)


def document_of(package: str) -> str:
    return ast.get_docstring(ast.parse(PACKAGES[package].read_text())) or ""


def permitted(document: str) -> set[str] | None:
    """Return the packages that a document permits; None if it does not mention imports."""
    found = IMPORTS.search(document)
    return None if found is None else set(re.findall("`([^`]+)`", found[1]))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_owns_and_where_reading_starts(package: str) -> None:
    document = document_of(package)
    assert document.count("\n") >= 2 and re.search(r"\bOwns\b", document)
    start = READING.search(document)
    assert start is not None and (PACKAGES[package].parent / start[1]).is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_it_says(package: str) -> None:
    says = permitted(document_of(package))
    assert says is not None and packages_imported(package) <= says


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_may_import_is_there_and_in_no_layer_above(package: str) -> None:
    area = area_of(package)
    places = {name.removeprefix("millstream.").removeprefix("tests.sim.") for name in PACKAGES}
    inner = area.removeprefix("millstream.")
    floors = FLOORS.get(inner, ())
    own = package.removeprefix(f"{area}.").partition(".")[0]
    for name in permitted(document_of(package)) or ():
        first = name.partition(".")[0]
        assert name in places or f"{inner}.{name}" in places, name
        if own in floors and first in floors and f"{inner}.{name}" in places:
            assert floors.index(first) <= floors.index(own), f"{name} is above {own}"


def test_an_import_that_a_package_does_not_mention_is_seen() -> None:
    assert permitted("Owns x.\nMay import `a.b`, `c` and\n`d`.\nAnd `e`.") == {"a.b", "c", "d"}
    assert permitted("May import nothing else of this project.") == set()
    assert permitted("Owns `a`.") is None
    name = "millstream.runtime.cluster.directory"
    assert packages_imported(name) == {"calls", "cluster", "runtime"}
