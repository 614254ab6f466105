"""The servers, options and addresses that a store in Redis accepts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from millstream.providers.priority.redis import RedisOptions, RedisStore
from millstream.providers.priority.redis.demands import fields_of, objection
from millstream.providers.priority.redis.options import Durability
from millstream.runtime import ConfigError

INFO = {"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction"}
DURABLE = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


def why(durability: Durability = "always", /, **changed: str) -> str:
    info, settings = dict(INFO), dict(DURABLE)
    for name, value in changed.items():
        table = info if name in INFO or name.startswith(("cluster", "master")) else settings
        table[name.replace("_", "-") if table is settings else name] = value
    return objection(info, settings, durability)


def test_a_durable_server_is_taken() -> None:
    assert why() == why("everysec") == why("none") == ""
    assert why(redis_version="7.2.4") == why(redis_version="8.0.0") == ""


@pytest.mark.parametrize(
    ("changed", "promised"),
    [
        ({"appendonly": "no"}, "none"),
        ({"appendfsync": "no"}, "none"),
        ({"appendfsync": "everysec"}, "everysec"),
        ({"no_appendfsync_on_rewrite": "yes"}, "everysec"),
    ],
    ids=lambda one: str(one),
)
def test_a_server_that_promises_less_is_named_with_what_to_do(
    changed: dict[str, str], promised: Durability
) -> None:
    [(name, value)] = changed.items()
    text = why(**changed)
    assert f"{name.replace('_', '-')} {value}" in text and "appendfsync always" in text
    assert f"RedisOptions(durability={promised!r})" in text
    assert why(promised, **changed) == ""
    assert "appendfsync always, no-appendfsync-on-rewrite no, or" in text
    assert bool(why("everysec", **changed)) is (promised == "none")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"redis_version": "6.2.9"}, "is Redis 6.2.9; 7.0 or later"),
        ({"cluster_enabled": "1"}, "Redis Cluster"),
        ({"role": "slave", "master_host": "h", "master_port": "1"}, "its master, h:1"),
        ({"maxmemory_policy": "allkeys-lru"}, "allkeys-lru.*noeviction"),
    ],
    ids=lambda one: str(one),
)
def test_what_no_option_allows(changed: dict[str, str], text: str) -> None:
    assert re.search(text, why("always", **changed)) and re.search(text, why("none", **changed))


def test_a_server_that_does_not_tell_its_settings_is_taken_for_none() -> None:
    assert "CONFIG GET" in objection(INFO, None, "always")
    assert "CONFIG GET" in objection(INFO, None, "everysec")
    assert objection(INFO, None, "none") == ""


def test_info_is_read_by_field() -> None:
    found = fields_of(b"# Server\r\nredis_version:7.0.15\r\nexecutable:/a:b\r\n\r\n")
    assert found == {"redis_version": "7.0.15", "executable": "/a:b"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durability": "sometimes"}, "'always', 'everysec' or 'none'"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"connections_max": 0}, "connections_max"),
        ({"page_rows": 0}, "page_rows"),
        ({"prefix": ""}, "1 to 64 bytes"),
        ({"prefix": "x" * 65}, "1 to 64 bytes"),
        ({"prefix": "a\n"}, "printable"),
        ({"prefix": "a{b}"}, "braces"),
    ],
    ids=lambda one: str(one),
)
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RedisOptions(**options)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("localhost:6379", "redis://host:port/db"),
        ("redis://:secret@h:x", "redis://host:port/db"),
        ("redis://h/0?socket_timeout=3", "socket_timeout: use RedisOptions"),
    ],
)
def test_addresses_are_checked_and_passwords_not_shown(address: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        RedisStore(address)
    assert "secret" not in str(caught.value)


def test_a_place_has_no_password() -> None:
    store = RedisStore("redis://me:secret@h:7/3", options=RedisOptions(password="hidden"))
    assert store.place == "redis h:7/3 millstream"
    assert RedisStore("unix:///run/redis.sock?db=2").place == "redis /run/redis.sock/2 millstream"
    assert "hidden" not in repr(store.options)
