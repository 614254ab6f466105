"""Defines the mark that links a test to its rows of the page."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, because of `--strict-markers`."""
    config.addinivalue_line("markers", "row(*numbers): which rows of the conformance page it tests")
