"""Commands of these tests are an operator's: their secret is in the environment, as at a shell."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_OPERATOR_SECRET", "an operator's secret of these tests")
