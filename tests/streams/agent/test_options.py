"""Options of streams and providers are checked when they are made, like those of a silo."""

from __future__ import annotations

import math
from typing import Any

import pytest

from millstream.providers.memory import MemoryOptions
from millstream.providers.sqlite import WriterOptions
from millstream.runtime import ConfigError
from millstream.streams import (
    CacheLimits,
    DeliveryOptions,
    FlowOptions,
    OwnershipOptions,
    StreamOptions,
)

WRONG: list[tuple[type[Any], str, Any, str]] = [
    (CacheLimits, "events_max", 0, "must be a whole number > 0"),
    (CacheLimits, "bytes_max", 1.5, "must be a whole number > 0"),
    (FlowOptions, "read_events_max", True, "must be a whole number > 0"),
    (FlowOptions, "ack_every_s", -0.1, "must be a number >= 0"),
    (DeliveryOptions, "retries", -1, "must be a whole number >= 0"),
    (DeliveryOptions, "retries", "5", "must be a whole number >= 0"),
    (DeliveryOptions, "handler_timeout_s", math.inf, "must be a number > 0"),
    (DeliveryOptions, "backoff", 0.1, "must be a Backoff"),
    (OwnershipOptions, "lease_s", math.nan, "must be a number >= 0"),
    (OwnershipOptions, "poll_s", 0, "must be a number > 0"),
    (StreamOptions, "cache", None, "must be a CacheLimits"),
    (StreamOptions, "store", 5, "must be a str"),
    (StreamOptions, "poll_first_s", 0, "must be a number > 0"),
    (StreamOptions, "enqueue_wait_s", -1, "must be a number >= 0"),
    (MemoryOptions, "capacity_events", 0, "must be a whole number > 0"),
    (MemoryOptions, "enqueue_wait_s", -1, "must be a number >= 0"),
    (WriterOptions, "pending_max", 0, "must be a whole number > 0"),
]


@pytest.mark.parametrize(("cls", "name", "value", "wanted"), WRONG)
def test_an_option_that_cannot_work_is_named_with_its_value(
    cls: type[Any], name: str, value: Any, wanted: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{name} is .*; it {wanted}$"):
        cls(**{name: value})


def test_what_may_be_nothing_may_be_zero() -> None:
    owning = OwnershipOptions(lease_s=0, max_handoff_s=0, force_after_s=0)
    assert owning.lease_s == owning.max_handoff_s == owning.force_after_s == 0
    streams = StreamOptions(enqueue_wait_s=0, flow=FlowOptions(ack_every_s=0))
    assert streams.enqueue_wait_s == streams.flow.ack_every_s == 0
    assert DeliveryOptions(retries=0).retries == MemoryOptions(enqueue_wait_s=0).enqueue_wait_s == 0
