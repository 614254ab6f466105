"""Options of streams by deadline: impossible values are refused at construction."""

from __future__ import annotations

import re
from typing import Any

import pytest

from millstream.providers.priority import DeadlineOptions, QueueSettings
from millstream.runtime import ConfigError

LIMITS: dict[str, tuple[float, float]] = {
    "lease_s": (0.001, 86_400),
    "attempts": (1, 1_000),
    "payload_bytes_max": (1, 16 * 1024 * 1024),
    "messages_max": (1, 1_000_000_000),
    "retention_s": (0.001, 316_224_000),
}
BELOW = {"lease_s": 0.0, "retention_s": 0.0004}


def options(name: str, value: object) -> DeadlineOptions:
    given: Any = {name: value}
    return DeadlineOptions(**given)


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_within_the_limits_makes_a_queue_and_nothing_else_is_taken(name: str) -> None:
    least, most = LIMITS[name]
    for fits in (least, most):
        assert isinstance(options(name, fits).settings(), QueueSettings)
    for odd in (BELOW.get(name, 0), -1, most + 1, 1e12, True, None, "5"):
        with pytest.raises(ConfigError, match=re.escape(f"DeadlineOptions.{name} is {odd!r}; ")):
            options(name, odd)
