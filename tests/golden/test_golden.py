"""Names and forms on the wire and in stores equal the golden files.

A module that moves, or a class that is renamed, must not change them unnoticed. `python -m
tests.golden` writes the files.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.golden.forms import FILES, HERE, form_classes, modules, own

from millstream.runtime import MillstreamError
from millstream.runtime.extending import type_name
from millstream.streams.failures.policy import is_one_of, type_names

for extra in ("aiohttp", "psycopg", "pyspark", "redis", "rich"):
    pytest.importorskip(
        extra, reason=f"{extra} is not installed; the golden files cover all modules"
    )


@pytest.mark.parametrize("file", FILES)
def test_names_forms_and_bytes_are_golden(file: str) -> None:
    assert FILES[file]() == (HERE / file).read_text().splitlines(), "python -m tests.golden"


def test_two_errors_have_no_name_in_common() -> None:
    names = Counter(map(type_name, own(Exception)))
    assert [name for name, count in names.items() if count > 1] == []


def test_two_forms_have_no_name_in_common() -> None:
    names = Counter(cls.__name__ for cls in form_classes())
    assert [name for name, count in names.items() if count > 1] == []


def test_each_exported_error_has_a_name_without_its_module() -> None:
    for module, _ in modules():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, Exception):
                is_ours = value.__module__.startswith("millstream.")
                assert not is_ours or type_name(value) == f"millstream.{value.__name__}"


@pytest.mark.parametrize("module", ["millstream.runtime.errors", "millstream.moved.elsewhere"])
def test_an_error_has_the_same_name_in_any_module_of_ours(module: str) -> None:
    cls: type[Exception] = type("Overloaded", (MillstreamError,), {"__module__": module})
    assert type_names((cls,)) == ("millstream.Overloaded",)
    assert is_one_of(cls("text"), ("millstream.Overloaded",))
    assert type_name(type("Inner", (cls,), {"__module__": "shop"})) == "shop.Inner"


def test_an_error_of_others_is_named_by_its_module() -> None:
    broken = type("Broken", (MillstreamError,), {"__module__": "shop.orders"})
    assert type_name(broken) == "shop.orders.Broken"
    assert type_name(ValueError) == "builtins.ValueError"
    assert type_name(asyncio.CancelledError) == "asyncio.exceptions.CancelledError"
