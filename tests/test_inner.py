"""Tests use public modules or pure inner ones; the share of other tests does not grow.

`reaching.txt` lists the files that use inner modules that are not pure. A file leaves the list when
it is rewritten. New files must not join it.
"""

from __future__ import annotations

import functools

import pytest
from tests.imports import ROOT
from tests.inner import Reach, files_of_tests, is_pure, reach_of

SHARE_MAX = 0.48
KNOWN = ROOT / "tests/reaching.txt"


@functools.cache
def sources() -> dict[str, str]:
    return {name: path.read_text() for name, path in files_of_tests().items()}


@functools.cache
def reach() -> Reach:
    return reach_of(sources())


def test_no_more_tests_reach_inner_modules_that_act() -> None:
    new = sorted(reach().others.keys() - set(KNOWN.read_text().split()))
    assert not new, f"test through public modules, or only pure ones: {new}"
    assert reach().share <= SHARE_MAX, f"{reach().share:.2%} of the lines of tests"


def test_the_list_names_no_file_that_reaches_no_such_module_any_more() -> None:
    assert sorted(set(KNOWN.read_text().split()) - reach().others.keys()) == []


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("millstream.streams.ownership.record", True),
        ("millstream.streams.agent.cache.queue_cache", True),
        ("millstream.streams.ownership.store", False),
        ("millstream.runtime.env", False),
    ],
)
def test_a_pure_module_is_told_from_others(module: str, expected: bool) -> None:
    assert is_pure(module) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from millstream.streams import Token\n", set()),
        ("from millstream.streams.ownership.record import QueueRecord\n", set()),
        ("from millstream.streams.ownership import store\n", {"tests.a", "tests.b"}),
        ("from millstream.streams.ownership.store import OwnershipStore\n", {"tests.a", "tests.b"}),
        ("from millstream.streams.ownership.record import Gone\n", set()),
    ],
)
def test_a_planted_import_is_seen_through_a_helper(source: str, expected: set[str]) -> None:
    """`b` imports `a`, which has the import."""
    planted = {"tests.a": source, "tests.b": "from tests.a import thing\n"}
    assert reach_of(planted).others.keys() == expected
