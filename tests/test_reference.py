"""The reference is generated from docstrings: it has each public name, and each argument."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

import pytest
from tests.imports import ROOT

PUBLIC = [
    "millstream.balancers",
    "millstream.providers.generator",
    "millstream.providers.ledger",
    "millstream.providers.ledger.inspection",
    "millstream.providers.memory",
    "millstream.providers.postgres",
    "millstream.providers.priority",
    "millstream.providers.priority.http",
    "millstream.providers.priority.jobs",
    "millstream.providers.priority.postgres",
    "millstream.providers.sqlite",
    "millstream.runtime",
    "millstream.runtime.database",
    "millstream.runtime.extending",
    "millstream.runtime.postgres",
    "millstream.runtime.run",
    "millstream.runtime.testing",
    "millstream.runtime.wire",
    "millstream.streams",
    "millstream.streams.extending",
    "millstream.streams.testing",
]
NAMED = {
    found
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for found in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
}
ELSEWHERE = {
    **{
        f"millstream.providers.postgres.{name}": f"millstream.runtime.postgres.{name}"
        for name in ("PostgresOptions", "SchemaState", "migrate_schema", "read_schema")
    },
    "millstream.providers.sqlite.WriterOptions": "millstream.runtime.database.WriterOptions",
}
"""Names that two modules export: the reference has the second one."""
SECTION = r"^%s:\n((?:(?:    .*)?\n)*)"
ENTRY = re.compile(r"^    (\**\w+):", re.M)


def exported(module: str) -> list[str]:
    """The full names, without `random.Random`, which is of the standard library."""
    found = importlib.import_module(module)
    return [
        f"{module}.{name}"
        for name in found.__all__
        if not str(getattr(getattr(found, name), "__module__", "")).startswith("random")
    ]


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_has_every_public_name(module: str) -> None:
    assert {ELSEWHERE.get(name, name) for name in exported(module)} <= NAMED


def test_the_reference_has_no_name_that_is_gone() -> None:
    for name in NAMED:
        module, _, attribute = name.rpartition(".")
        if not module.startswith(("millstream.providers.spark", "millstream.providers.priority.r")):
            assert hasattr(importlib.import_module(module), attribute), name


def described(value: Any, section: str) -> list[str]:
    """The names in a section of a docstring, in its order."""
    text = inspect.cleandoc(value.__doc__ or "") + "\n"
    found = re.findall(SECTION % section, text, re.M)
    return [name.lstrip("*") for part in found for name in ENTRY.findall(part)]


@pytest.mark.parametrize("name", [name for module in PUBLIC for name in exported(module)])
def test_a_docstring_describes_the_arguments_that_there_are(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    if dataclasses.is_dataclass(value):
        fields = {field.name for field in dataclasses.fields(value)}
        names = {*described(value, "Args"), *described(value, "Attributes")}
        assert all(hasattr(value, one) for one in names - fields)
    elif callable(value) and (names := set(described(value, "Args"))):
        assert names == set(inspect.signature(value).parameters) - {"self"}
