"""Which migrations a program applies, and which schemas it refuses."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

from millstream.runtime.postgres.migrations import (
    MIGRATIONS,
    Migration,
    SchemaState,
    plan_steps,
)

THREE = tuple(Migration(number, max(1, number - 1), ()) for number in (1, 2, 3))
"""A release with an older one: version 2 expands, version 3 contracts what version 1 used."""


def versions(
    found: SchemaState, may_create: bool, may_upgrade: bool, known: int = 3
) -> list[int] | str:
    plan = plan_steps(
        found, may_create=may_create, may_upgrade=may_upgrade, migrations=THREE[:known]
    )
    assert not (plan.steps and plan.objection)
    return plan.objection or [step.version for step in plan.steps]


def test_a_missing_schema_is_created_if_that_is_allowed() -> None:
    assert versions(SchemaState(), True, False) == [1, 2, 3]
    assert versions(SchemaState(), True, True) == [1, 2, 3]
    for may_upgrade in (False, True):
        said = versions(SchemaState(), False, may_upgrade)
        assert "does not exist" in said and "store migrate" in said


def test_an_older_schema_is_migrated_by_the_command_only() -> None:
    assert versions(SchemaState(1, 1), True, True) == [2, 3]
    assert versions(SchemaState(2, 1), False, True) == [3]
    said = versions(SchemaState(1, 1), True, False)
    assert "has version 1" in said and "needs version 3" in said and "store migrate" in said


@pytest.mark.parametrize("may_upgrade", [False, True])
def test_a_schema_of_this_version_needs_nothing(may_upgrade: bool) -> None:
    assert versions(SchemaState(3, 2), True, may_upgrade) == []


@pytest.mark.parametrize("may_upgrade", [False, True])
def test_a_newer_schema_is_used_until_it_is_not_readable_any_more(may_upgrade: bool) -> None:
    assert versions(SchemaState(3, 2), True, may_upgrade, known=2) == []
    said = versions(SchemaState(3, 2), True, may_upgrade, known=1)
    assert "needs programs of version 2" in said and "this program has version 1" in said


def test_migrations_are_numbered_and_leave_one_release_readable() -> None:
    assert [step.version for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
    for before, step in zip((MIGRATIONS[0], *MIGRATIONS), MIGRATIONS, strict=False):
        assert before.readable_from <= step.readable_from <= max(1, step.version - 1)


def test_each_table_is_in_the_schema() -> None:
    for step in MIGRATIONS:
        for statement in step.statements:
            assert "{schema}" in statement and "  " not in statement
