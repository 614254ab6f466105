"""The meaning of errors of PostgreSQL: what is wrong, what to do, and whether a change was made.

This module owns `DatabaseTrouble`, `judge_answer` and `judge_refusal`. The module sees codes and
texts only.

A server that answers `ERROR` has undone the statement. After `FATAL`, `PANIC` or no answer, the
statement may have been committed.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DatabaseTrouble", "judge_answer", "judge_refusal"]


class DatabaseTrouble(NamedTuple):
    """The meaning of an error.

    Attributes:
        why: The fact and the remedy, to be read after the place of the database.
        is_setting: Only a change of settings helps, so a silo refuses to start.
        may_be_done: Whether a change may have been made.
        is_full: Whether the server has all the connections that it allows.
    """

    why: str
    is_setting: bool = False
    may_be_done: bool = False
    is_full: bool = False

    @property
    def outcome(self) -> str:
        """The outcome of a change, as a clause for messages."""
        return "the change may have been made" if self.may_be_done else "nothing was changed"


UNDONE = "ERROR"
"""The severity of an answer whose statement was undone. See "Message Severity Levels" in
PostgreSQL's documentation."""
ANSWERS: tuple[tuple[str, str, bool], ...] = (
    (
        "57014",
        "did not finish in time: raise timeout_s, or find out what the server waits for",
        False,
    ),
    ("25006", "is a standby now, or read-only: give the address of the primary", False),
    ("42501", "does not give its user the required permissions: grant them on the schema", True),
    ("3F000", "has no such schema any more: stop all silos, then restore it", False),
    ("42P01", "lacks a table of Millstream: stop all silos, then restore the schema", False),
    ("42703", "lacks a column of Millstream: start the Millstream of that schema", False),
    ("42P07", "has other tables in that schema: name another schema", True),
    ("53100", "has no space left on its disk: free some", False),
    ("53200", "has no memory left: retry later", False),
    (
        "53300",
        "has no free connection: raise max_connections there, or lower connections_max",
        False,
    ),
    ("54", "cannot store so long a value: shorten it", False),
    ("40", "undid the statement because of another one: retry", False),
    ("57P", "is being shut down or restarted: retry later", False),
    ("08", "lost the connection: retry later", False),
)
"""Beginnings of SQLSTATE codes, with their meaning. The first that fits applies."""

REFUSALS: tuple[tuple[str, str, bool], ...] = (
    ("password authentication failed", "refuses the user or the password: correct the URL", True),
    ("no password supplied", "wants a password: put it into the URL or PostgresOptions", True),
    ("authentication failed", "refuses the user: correct the URL, or pg_hba.conf there", True),
    ("no pg_hba.conf entry", "refuses this host or user: add a line to pg_hba.conf there", True),
    ("role ", "has no such user: correct the URL, or create the user there", True),
    ("database ", "has no such database: correct the URL, or create the database there", True),
    ("invalid ", "was given a setting that is not valid: correct the URL", True),
    ("the database system is", "is starting or stopping: retry later", False),
    ("read-only", "is a standby: give the address of the primary", False),
)
"""Texts of refused connections. libpq gives no code for them, so servers whose messages are not
English get the general meaning."""
FULL_TEXTS = ("too many clients", "connection slots", "too many connections")
MISSING = ("role ", "database ")
FULL = DatabaseTrouble(
    "has no free connection: raise max_connections there, or lower connections_max", is_full=True
)
LOST = DatabaseTrouble("lost the connection: retry later", may_be_done=True)
UNREACHED = "cannot be reached: start the server, or correct the URL"


def judge_answer(code: str | None, severity: str | None) -> DatabaseTrouble:
    """Judge the error of a statement that was sent.

    Args:
        code: The SQLSTATE. None: the server sent no answer.
        severity: `ERROR`, `FATAL` or `PANIC`, not translated. None: there was no answer.
    """
    if code is None:
        return LOST
    may_be_done = severity != UNDONE
    for start, why, is_setting in ANSWERS:
        if code.startswith(start):
            return DatabaseTrouble(why, is_setting, may_be_done)
    return DatabaseTrouble("refused the statement", False, may_be_done)


def judge_refusal(text: str) -> DatabaseTrouble:
    """Judge the error of a connection that was not made. Nothing was sent over it.

    Args:
        text: The text of libpq. With several hosts it has one error for each.
    """
    last = text.strip().splitlines()[-1] if text.strip() else ""
    if any(part in last for part in FULL_TEXTS):
        return FULL
    for part, why, is_setting in REFUSALS:
        if part in last and (part not in MISSING or "does not exist" in last):
            return DatabaseTrouble(why, is_setting)
    return DatabaseTrouble(UNREACHED)


class ServerFacts(NamedTuple):
    """The properties of a server, as it reports them at the start of a connection.

    Attributes:
        version: Its version, such as 150_004.
        fsync: Its setting `fsync`, `on` or `off`.
        full_page_writes: Its setting of that name.
        identity: The id of the server and of the database in it.
        schema: The id of the schema. None: it does not exist.
    """

    version: int
    fsync: str
    full_page_writes: str
    identity: str
    schema: int | None


VERSION_MIN = 130_000


def judge_server(facts: ServerFacts, requires_durable: bool, known: str) -> DatabaseTrouble | None:
    """Judge a server. None: it can be used.

    Args:
        facts: what the server says.
        requires_durable: refuse a server that may lose acknowledged rows.
        known: the identity of the schema that was used before. Empty: none was.
    """
    if facts.version < VERSION_MIN:
        return DatabaseTrouble(
            f"is PostgreSQL {facts.version // 10_000}: use {VERSION_MIN // 10_000} or later", True
        )
    weak = [name for name in ("fsync", "full_page_writes") if getattr(facts, name) == "off"]
    if weak and requires_durable:
        why = f"runs with {weak[0]}=off, so a crash there loses acknowledged rows: set it to on"
        return DatabaseTrouble(f"{why}, or pass PostgresOptions(requires_durable=False)", True)
    if known and known != identity_of(facts):
        return DatabaseTrouble(
            "is another database or a restored one: stop every silo, then start again"
        )
    return None


def identity_of(facts: ServerFacts) -> str:
    """Return the text that identifies a schema of a server. A copy of its rows has another one."""
    return f"{facts.identity}, schema {facts.schema}"
