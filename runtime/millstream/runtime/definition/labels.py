"""The labels of silos, and the labels that a grain type requires. Pure.

Owns the form of both, their limits, and the decision whether labels fit. `cluster/placement.py`
applies it to the silos of a view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from millstream.runtime.errors import ConfigError
from millstream.runtime.text import check_text, show_text, show_value, text_bytes

__all__ = [
    "LABELS_BYTES_MAX",
    "LABELS_MAX",
    "Labels",
    "Requirements",
    "fits",
    "labels_of",
    "labels_of_each",
    "read_labels",
    "requirements_of",
    "show_labels",
    "show_requirements",
]

Labels = tuple[tuple[str, str], ...]
"""The labels of a silo: names and values, sorted by name."""
Requirements = tuple[tuple[str, tuple[str, ...]], ...]
"""The names of the required labels, each with the values that are allowed. Both are sorted."""
LABELS_MAX = 32
"""The most labels of a silo, names in a requirement, and values of one name."""
LABELS_BYTES_MAX = 2_000
"""The most bytes of all labels of a silo, and of all names and values of a requirement."""


def labels_of(where: str, given: object) -> Labels:
    """Return labels in their stored form.

    Args:
        where: The argument for error texts, such as `Silo(labels=...)`.
        given: The labels: a dict from names to values.

    Raises:
        ConfigError: The labels have a wrong form, or exceed a limit.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where} is {show_value(given)}; it must be a dict from names to values, such as "
            '{"zone": "a"}'
        )
    for name, value in given.items():
        check_label(where, "name", name)
        check_label(where, f"value of {show_value(name)}", value)
    check_sizes(where, len(given), [*given, *given.values()])
    return tuple(sorted(given.items()))


def labels_of_each(where: str, given: object) -> list[dict[str, str]]:
    """Return the labels of several silos, in their order. Raises ConfigError."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise ConfigError(
            f"{where} is {show_value(given)}; it must be a list with the labels of each silo, such "
            'as [{"zone": "a"}, {"zone": "b"}]'
        )
    return [dict(labels_of(where, one)) for one in given]


def requirements_of(where: str, given: object) -> Requirements:
    """Return required labels in their stored form.

    Args:
        where: The argument for error texts, such as `@grain(requires=...)`.
        given: A dict from names to a value each, or to a collection of allowed values. None stands
            for no requirement.

    Raises:
        ConfigError: The requirement has a wrong form, or exceeds a limit.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where} is {show_value(given)}; it must be a dict from names of labels to values, "
            'such as {"zone": "a"} or {"zone": {"a", "b"}}'
        )
    found: dict[str, tuple[str, ...]] = {}
    for name, values in given.items():
        check_label(where, "name", name)
        found[name] = tuple(sorted(values_of(where, name, values)))
    texts = [*found, *(value for values in found.values() for value in values)]
    check_sizes(where, max([len(found), *map(len, found.values())]), texts)
    return tuple(sorted(found.items()))


def values_of(where: str, name: str, given: object) -> set[str]:
    """Return the allowed values of one name. Raises ConfigError."""
    values = {given} if isinstance(given, str) else given
    if not isinstance(values, Collection) or isinstance(values, Mapping | bytes) or not values:
        raise ConfigError(
            f"{where}: {show_value(name)} has {show_value(given)}; it must be a value, or a set of "
            "values that is not empty"
        )
    for value in values:
        check_label(where, f"value of {show_value(name)}", value)
    return set(values)


def check_label(where: str, what: str, text: object) -> None:
    """Raise ConfigError for a name or value that is not valid."""
    is_valid = isinstance(text, str) and bool(text) and text.isprintable()
    if not is_valid or "," in str(text) or "=" in str(text) or str(text) != str(text).strip():
        raise ConfigError(
            f"{where}: the {what} of a label is {show_value(text)}; it must be printable text "
            "without `,` and `=`, without spaces at its ends, and not empty"
        )
    try:
        check_text(what, text)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from None


def check_sizes(where: str, count: int, texts: Collection[str]) -> None:
    """Raise ConfigError above a limit. Every silo keeps the labels of all silos."""
    if count > LABELS_MAX:
        raise ConfigError(f"{where} has {count} entries; LABELS_MAX is {LABELS_MAX}: use fewer")
    size_bytes = text_bytes(texts)
    if size_bytes > LABELS_BYTES_MAX:
        raise ConfigError(
            f"{where} takes {size_bytes} bytes; LABELS_BYTES_MAX is {LABELS_BYTES_MAX}: use "
            "shorter names and values"
        )


def read_labels(text: str) -> dict[str, str]:
    """Read the text `name=value,name=value`, as options of programs have it.

    Raises:
        ConfigError: The text has another form, names a label twice, or exceeds a limit.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{show_value(part)} is no label: write NAME=VALUE,NAME=VALUE")
        if name in found:
            raise ConfigError(f"label {show_value(name)} is given twice")
        found[name] = value
    labels_of("NAME=VALUE,...", found)
    return found


def fits(labels: Labels, requires: Requirements) -> bool:
    """Return whether a silo with these labels meets a requirement."""
    if not requires:
        return True
    own = dict(labels)
    return all(own.get(name) in values for name, values in requires)


def show_labels(labels: Labels) -> str:
    """Return labels as messages show them: `disk=ssd, zone=a`."""
    return show_text(", ".join(f"{name}={value}" for name, value in labels)) or "no labels"


def show_requirements(requires: Requirements) -> str:
    """Return a requirement as messages show it: `disk=ssd, zone=a or b`."""
    return show_text(", ".join(f"{name}={' or '.join(values)}" for name, values in requires))
