"""URLs of databases: schema, place, and no secret in any text."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

from millstream.runtime import ConfigError
from millstream.runtime.postgres import PostgresOptions
from millstream.runtime.postgres.address import read_address

DEFAULTS = PostgresOptions()


@pytest.mark.parametrize(
    ("url", "schema", "place"),
    [
        ("postgresql://h/db", "millstream", "postgresql h/db schema millstream"),
        ("postgres://u:hidden@h:5/db", "millstream", "postgresql h:5/db schema millstream"),
        ("//u:hidden@h:5/db?schema=shop", "shop", "postgresql h:5/db schema shop"),
        ("//u:hid%40den@a:1,b:2/db", "millstream", "postgresql a:1,b:2/db schema millstream"),
        (
            "//[::1]:5432/db?password=hidden",
            "millstream",
            "postgresql [::1]:5432/db schema millstream",
        ),
        (
            "postgresql://",
            "millstream",
            "postgresql the default host/the default database schema millstream",
        ),
    ],
)
def test_a_url_has_a_schema_and_a_place_without_secrets(url: str, schema: str, place: str) -> None:
    address = read_address(url, DEFAULTS)
    assert (address.schema, address.place) == (schema, place)
    assert "hid" not in repr(address) and "schema=" not in address.url


def test_other_parameters_reach_the_driver() -> None:
    address = read_address("//h/db?sslmode=require&schema=a&options=-c%20x%3D1", DEFAULTS)
    assert address.url == "postgresql://h/db?sslmode=require&options=-c+x%3D1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://u:hidden@h/db",
        "postgresql:u:hidden",
        "host=h password=hidden",
        "//u:hidden@h/db?schema=a&schema=b",
        "//u:hidden@h/db?schema=",
        "//u:hidden@h/db?schema=A",
        "//u:hidden@h/db?schema=pg_x",
        "//u:hidden@h/db?schema=a;drop",
        "//u:hidden@h/db?novalue",
        "//u:hidden@h/db#part",
        "//u:hidden@[h/db",
    ],
)
def test_a_url_that_is_not_valid_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_address(url, DEFAULTS)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("schema", ["", "Shop", "9a", "a-b", "pg_catalog", "a" * 49, 'a"b', "a\n"])
def test_a_schema_that_needs_quotes_is_refused(schema: str) -> None:
    with pytest.raises(ConfigError, match=r"PostgresOptions\.schema"):
        PostgresOptions(schema=schema)


def test_options_never_show_the_password() -> None:
    assert "hidden" not in repr(PostgresOptions(password="hidden"))


@pytest.mark.parametrize(
    "wrong", [{"connections_max": 0}, {"timeout_s": 0.0}, {"idle_s": -1.0}, {"pending_max": 0}]
)
def test_limits_must_be_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="PostgresOptions"):
        PostgresOptions(**wrong)  # type: ignore[arg-type]
