"""The address of a database, as programs write it and as messages show it.

This module owns `DatabaseAddress` and `read_address`. No text for people has the password, the
user, or a parameter of the URL.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from millstream.runtime.errors import ConfigError

from .options import PostgresOptions, check_schema

__all__ = ["DatabaseAddress", "read_address"]

FORM = "postgresql://user:password@host:port/database"
SCHEMES = ("postgresql", "postgres")


class DatabaseAddress(NamedTuple):
    """A database and a schema in it.

    Attributes:
        url: The URL for the driver. It may have a password, so it is never shown.
        schema: The schema.
        place: The text for people: hosts, database and schema.
    """

    url: str
    schema: str
    place: str

    def __repr__(self) -> str:
        return f"DatabaseAddress({self.place!r})"


def read_address(url: str, options: PostgresOptions) -> DatabaseAddress:
    """Read a URL. Raises ConfigError, which shows no part of the URL.

    Args:
        url: `postgresql://...`, or what follows `postgresql:` as a plug-in by name gets it. The
            parameter `schema` names the schema; all others are those of libpq.
        options: the schema that applies if the URL names none.
    """
    text = f"{SCHEMES[0]}:{url}" if url.startswith("//") else url
    try:
        scheme, netloc, path, query, fragment = urlsplit(text)
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(f"the URL of the database is not valid; its form is {FORM}") from None
    if scheme not in SCHEMES or fragment or not text.startswith(f"{scheme}://"):
        raise ConfigError(f"the URL of the database must have the form {FORM}")
    named = [value for name, value in pairs if name == "schema"]
    if len(named) > 1:
        raise ConfigError(f"the URL of the database has {len(named)} schemas: name one")
    schema = named[0] if named else options.schema
    check_schema("the schema in the URL of the database", schema)
    rest = urlencode([pair for pair in pairs if pair[0] != "schema"])
    hosts = netloc.rpartition("@")[2] or "the default host"
    place = f"postgresql {hosts}/{path.lstrip('/') or 'the default database'} schema {schema}"
    return DatabaseAddress(urlunsplit((scheme, netloc, path, rest, "")), schema, place)
