"""What an error of PostgreSQL means: a setting or an outage, and the outcome of a change."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

from millstream.runtime.postgres.failures import (
    ServerFacts,
    identity_of,
    judge_answer,
    judge_refusal,
    judge_server,
)

FROM = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


@pytest.mark.parametrize(
    ("code", "severity", "said", "is_setting", "may_be_done"),
    [
        (None, None, "lost the connection", False, True),
        ("57P01", "FATAL", "shut down", False, True),
        ("57P03", "ERROR", "shut down", False, False),
        ("57014", "ERROR", "timeout_s", False, False),
        ("25006", "ERROR", "standby", False, False),
        ("42501", "ERROR", "permissions", True, False),
        ("42P01", "ERROR", "lacks a table", False, False),
        ("42P07", "ERROR", "other tables", True, False),
        ("53100", "ERROR", "disk", False, False),
        ("53100", "PANIC", "disk", False, True),
        ("54000", "ERROR", "so long a value", False, False),
        ("40P01", "ERROR", "retry", False, False),
        ("XX000", "ERROR", "refused the statement", False, False),
        ("XX000", None, "refused the statement", False, True),
    ],
)
def test_an_answer_says_what_is_wrong_and_whether_the_change_was_made(
    code: str | None, severity: str | None, said: str, is_setting: bool, may_be_done: bool
) -> None:
    trouble = judge_answer(code, severity)
    assert said in trouble.why
    assert (trouble.is_setting, trouble.may_be_done) == (is_setting, may_be_done)
    assert ("may have been made" in trouble.outcome) is may_be_done


@pytest.mark.parametrize(
    ("text", "said", "is_setting"),
    [
        (FROM + 'password authentication failed for user "a"', "refuses the user", True),
        ("fe_sendauth: no password supplied", "wants a password", True),
        (FROM + 'role "nobody" does not exist', "no such user", True),
        (FROM + 'database "nodb" does not exist', "no such database", True),
        (FROM + 'no pg_hba.conf entry for host "::1"', "pg_hba.conf", True),
        (FROM + "sorry, too many clients already", "no free connection", False),
        (FROM + "remaining connection slots are reserved", "no free connection", False),
        (FROM + "the database system is starting up", "retry later", False),
        (FROM + "the database system is in recovery mode", "retry later", False),
        ("session is read-only", "standby", False),
        ("Connection refused\n\tIs the server running on that host?", "cannot be reached", False),
        (FROM + "Passwort-Authentifizierung fehlgeschlagen", "cannot be reached", False),
        ("", "cannot be reached", False),
    ],
)
def test_a_refused_connection_says_what_to_do(text: str, said: str, is_setting: bool) -> None:
    trouble = judge_refusal(text)
    assert said in trouble.why
    assert trouble.is_setting is is_setting and not trouble.may_be_done


FACTS = ServerFacts(150_004, "on", "on", "1/5", 7)


@pytest.mark.parametrize(
    ("facts", "requires_durable", "known", "said"),
    [
        (FACTS, True, "", None),
        (FACTS, True, "1/5, schema 7", None),
        (FACTS._replace(version=120_022), True, "", "use 13 or later"),
        (FACTS._replace(fsync="off"), True, "", "fsync=off"),
        (FACTS._replace(full_page_writes="off"), True, "", "full_page_writes=off"),
        (FACTS._replace(fsync="off"), False, "", None),
        (FACTS._replace(identity="2/5"), True, "1/5, schema 7", "another database"),
        (FACTS._replace(schema=8), True, "1/5, schema 7", "another database"),
        (FACTS._replace(schema=None), True, "1/5, schema 7", "another database"),
    ],
)
def test_a_server_that_loses_rows_or_has_others_is_refused(
    facts: ServerFacts, requires_durable: bool, known: str, said: str | None
) -> None:
    trouble = judge_server(facts, requires_durable, known)
    assert trouble is None if said is None else trouble is not None and said in trouble.why


def test_server_database_and_schema_identify_a_table() -> None:
    others = [FACTS._replace(identity="1/6"), FACTS._replace(schema=8)]
    assert len({identity_of(one) for one in [FACTS, *others]}) == 3
