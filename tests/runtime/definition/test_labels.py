"""Labels of silos and required labels: their form, their limits, and whether they fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import ConfigError, Grain, LocalCluster, Silo, grain
from millstream.runtime.definition.labels import (
    LABELS_BYTES_MAX,
    LABELS_MAX,
    fits,
    labels_of,
    read_labels,
    requirements_of,
    show_labels,
    show_requirements,
)

words = st.sampled_from(["zone", "disk", "a", "b", "c"])
labels = st.dictionaries(words, words, max_size=4)
requirements = st.dictionaries(words, st.sets(words, min_size=1), max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(labels, requirements)
def test_labels_fit_if_each_required_name_has_an_allowed_value(
    has: dict[str, str], wants: dict[str, set[str]]
) -> None:
    expected = all(name in has and has[name] in values for name, values in wants.items())
    assert fits(labels_of("x", has), requirements_of("x", wants)) is expected


@settings(max_examples=examples(100), deadline=None)
@given(labels)
def test_the_text_of_labels_is_read_back(has: dict[str, str]) -> None:
    if has:
        assert read_labels(",".join(f"{name}={value}" for name, value in has.items())) == has


def test_the_stored_form_does_not_depend_on_the_order() -> None:
    assert labels_of("x", {"b": "2", "a": "1"}) == (("a", "1"), ("b", "2"))
    assert requirements_of("x", {"b": ["2", "1", "2"], "a": "1"}) == (
        ("a", ("1",)),
        ("b", ("1", "2")),
    )
    assert requirements_of("x", None) == () and fits((), ())


def test_messages_show_labels_in_one_line() -> None:
    assert show_labels(labels_of("x", {"zone": "a", "disk": "ssd"})) == "disk=ssd, zone=a"
    assert show_labels(()) == "no labels"
    assert show_requirements(requirements_of("x", {"zone": {"b", "a"}})) == "zone=a or b"


WRONG: list[Any] = [
    "zone=a",
    ["zone"],
    {"": "a"},
    {"zone": ""},
    {1: "a"},
    {"zone": 1},
    {"a,b": "c"},
    {"a=b": "c"},
    {"zone": "a,b"},
    {"zone": "a=b"},
    {" zone": "a"},
    {"zone": "a "},
    {"zone": "a\n"},
    {"zone": "\ud800"},
    {f"{number}": "a" for number in range(LABELS_MAX + 1)},
    {"zone": "a" * LABELS_BYTES_MAX},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_labels_are_refused_where_they_are_given(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"Silo\(labels=\.\.\.\)"):
        Silo(grains=[], labels=wrong)
    with pytest.raises(ConfigError, match=r"@grain\(requires=\.\.\.\)"):
        grain(requires=wrong)


@pytest.mark.parametrize("wrong", [5, None, {"zone": "a"}, "zone=a", {1, 2}, ["zone=a"], [None]])
def test_wrong_lists_of_labels_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"LocalCluster\(labels=\.\.\.\)"):
        LocalCluster(grains=[], labels=wrong)


@pytest.mark.parametrize("values", [set(), [], {"a": "b"}, b"a", 5, None, {1}, {"a", ""}])
def test_wrong_sets_of_values_are_refused(values: Any) -> None:
    with pytest.raises(ConfigError, match=r"requires=\.\.\.\)"):
        grain(requires={"zone": values})


def test_the_limits_themselves_are_accepted() -> None:
    assert len(labels_of("x", {f"{number}": "a" for number in range(LABELS_MAX)})) == LABELS_MAX
    assert labels_of("x", {"zone": "a" * (LABELS_BYTES_MAX - 4)})
    values = {f"v{number}" for number in range(LABELS_MAX)}
    assert requirements_of("x", {"zone": values})
    with pytest.raises(ConfigError, match="LABELS_MAX is 32"):
        requirements_of("x", {"zone": {*values, "one more"}})


@pytest.mark.parametrize("text", ["zone", "zone=a,", "zone=a,zone=b", "=a", "zone=", "a=b=c"])
def test_a_wrong_text_of_labels_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_labels(text)


def test_a_subclass_inherits_the_requirement() -> None:
    @grain(requires={"zone": "a"})
    class Near(Grain): ...

    class Nearer(Near): ...

    assert Nearer.__millstream_type__.options.requires == (("zone", ("a",)),)
