"""The page of runtime conformance names tests that exist."""

from __future__ import annotations

import re

import pytest
from tests.imports import ROOT

PAGE = (ROOT / "docs/internals/conformance_runtime.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_each_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M)
