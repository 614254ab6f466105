"""The mark that says which rows a test is of."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """`--strict-markers` wants it known."""
    config.addinivalue_line("markers", "row(*numbers): which rows of the conformance page it tests")
