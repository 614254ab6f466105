"""The commands in these tests read their secret from the environment, as an operator's shell
does."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_OPERATOR_SECRET", "an operator's secret of these tests")
