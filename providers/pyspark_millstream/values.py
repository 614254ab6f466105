"""Arrow columns to values of items and back, by one set of rules at every depth, as pure functions.

| Arrow | as a value of an item | in MessagePack |
|---|---|---|
| null, NaN | None | nil |
| timestamp with a zone | `datetime` in UTC | timestamp |
| timestamp without a zone, date, time, duration, decimal | the same in Python | text |
| list | list | array |
| struct | dict by field | map |
| map | dict by key; keys are scalars, and NaN stays NaN | map |

This module owns `values_of` for writing and `array_of` for reading.
`array_of(decoded(encoded(values_of(column))), column.type)` is the column, with null for NaN. A
value that does not fit is an error that names its place, and nothing is truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyarrow import Array, DataType

__all__ = ["array_of", "values_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)


# -- writing


def values_of(column: Array) -> list[Any]:
    """Return the values of a column as Python objects.

    Raises ValueError for a map with nested or equal keys, and for a time that is no whole number of
    microseconds.
    """
    import pyarrow.types as kinds

    kind = column.type
    if kinds.is_floating(kind):
        # Only NaN differs from itself.
        return [None if value != value else value for value in column.to_pylist()]
    if kinds.is_timestamp(kind):
        return _timestamps(column)
    if kinds.is_struct(kind):
        return _dicts(column)
    if kinds.is_map(kind):
        return _maps(column)
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _lists(column, values_of(column.flatten()))
    return list(column.to_pylist())


def _dicts(column: Array) -> list[dict[str, Any] | None]:
    names = [field.name for field in column.type]
    fields = [values_of(field) for field in column.flatten()]
    rows = zip(*fields, strict=True) if fields else [()] * len(column)
    valid = column.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for row, is_valid in zip(rows, valid, strict=True)
    ]


def _lists(column: Array, items: Sequence[Any]) -> list[list[Any] | None]:
    """Distribute the items of all lists to their lists."""
    found: list[list[Any] | None] = []
    at = 0
    for length in column.value_lengths().to_pylist():
        found.append(None if length is None else list(items[at : at + length]))
        at += length or 0
    return found


def _maps(column: Array) -> list[dict[Any, Any] | None]:
    import pyarrow as arrow
    import pyarrow.types as kinds

    kind = column.type
    if kinds.is_nested(kind.key_type):
        raise ValueError(
            f"a map has keys of type {kind.key_type}, but keys of an item's map must be numbers, "
            "text, bytes, dates or times: write an array of structs, as map_entries() makes it"
        )
    pairs = column.cast(arrow.list_(arrow.struct([kind.key_field, kind.item_field])))
    keys, items = pairs.flatten().flatten()
    plain = keys.to_pylist() if kinds.is_floating(keys.type) else values_of(keys)
    found: list[dict[Any, Any] | None] = []
    for entries in _lists(pairs, list(zip(plain, values_of(items), strict=True))):
        made = None if entries is None else dict(entries)
        if entries is not None and made is not None and len(made) < len(entries):
            raise ValueError(
                f"a map has {len(entries)} entries, but only {len(made)} different keys"
            )
        found.append(made)
    return found


def _timestamps(column: Array) -> list[datetime | None]:
    """Convert to datetimes by arithmetic, because pyarrow looks up the zone for each value.

    Raises ArrowInvalid, a ValueError, for a time that is no whole number of microseconds.
    """
    import pyarrow as arrow

    epoch = _NAIVE_EPOCH if column.type.tz is None else _EPOCH
    exact = column.cast(arrow.timestamp("us", column.type.tz))
    micros = exact.cast(arrow.int64()).to_pylist()
    return [None if value is None else epoch + timedelta(0, 0, value) for value in micros]


# -- reading


def array_of(values: Sequence[Any], kind: DataType) -> Array:
    """Return an array of decoded values; texts are parsed as the type of the array.

    Raises ValueError, TypeError, OverflowError or ArrowException for a value that does not fit.
    """
    import pyarrow as arrow
    import pyarrow.types as kinds

    if kinds.is_struct(kind):
        return _structs(values, kind)
    if kinds.is_map(kind):
        return _map_array(values, kind)
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _list_array(values, kind)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        if any(one is not None and type(one) is not str for one in values):
            raise TypeError("it is not text")
    elif any(type(one) is str for one in values):
        return _with_texts(values, kind)
    return arrow.array(list(values), kind)


def _with_texts(values: Sequence[Any], kind: DataType) -> Array:
    """Return an array of values of which some or all are texts."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    texts = [one if type(one) is str else None for one in values]
    others = [None if type(one) is str else one for one in values]
    return compute.call_function("coalesce", [_read_texts(texts, kind), arrow.array(others, kind)])


def _structs(values: Sequence[Any], kind: DataType) -> Array:
    import pyarrow as arrow

    _check_each(values, (dict,), "a map of fields")
    fields = list(kind)
    arrays: list[Array] = []
    for field in fields:
        with _within(f".{field.name}"):
            children = [None if one is None else one.get(field.name) for one in values]
            arrays.append(array_of(children, field.type))
    absent = arrow.array([one is None for one in values], arrow.bool_())
    if not fields:
        return arrow.array([None if one is None else {} for one in values], kind)
    return arrow.StructArray.from_arrays(arrays, fields=fields, mask=absent)


def _list_array(values: Sequence[Any], kind: DataType) -> Array:
    import pyarrow as arrow
    import pyarrow.types as kinds

    _check_each(values, (list,), "a list")
    with _within("[]"):
        items = array_of(
            [item for one in values if one is not None for item in one], kind.value_type
        )
    is_large = kinds.is_large_list(kind)
    made = arrow.LargeListArray if is_large else arrow.ListArray
    offsets = arrow.array(_offsets(values), arrow.int64() if is_large else arrow.int32())
    return made.from_arrays(offsets, items, type=kind)


def _map_array(values: Sequence[Any], kind: DataType) -> Array:
    import pyarrow as arrow

    _check_each(values, (dict, list), "a map")
    pairs = [list(one.items()) if isinstance(one, dict) else one for one in values]
    flat = [pair for one in pairs if one is not None for pair in one]
    with _within(" key"):
        keys = array_of([key for key, _ in flat], kind.key_type)
    if keys.null_count:
        raise ValueError("a map has the key nil, which a map of Spark cannot have")
    with _within("{}"):
        items = array_of([item for _, item in flat], kind.item_type)
    offsets = arrow.array(_offsets(pairs), arrow.int32())
    return arrow.MapArray.from_arrays(offsets, keys, items, type=kind)


def _offsets(values: Sequence[Any]) -> list[int | None]:
    """Return the start of each list among all items, and their end; None: there is no list."""
    ends = accumulate((0 if one is None else len(one) for one in values), initial=0)
    *begins, end = ends
    return [*(None if one is None else at for one, at in zip(values, begins, strict=True)), end]


def _check_each(values: Sequence[Any], wanted: tuple[type, ...], what: str) -> None:
    for one in values:
        if one is not None and not isinstance(one, wanted):
            raise TypeError(f"it is {type(one).__name__}, not {what}")


@contextmanager
def _within(part: str) -> Iterator[None]:
    """Add the part of a value to an error."""
    import pyarrow as arrow

    try:
        yield
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"at {part}: {error}") from None


def _read_texts(values: list[str | None], kind: DataType) -> Array:
    """Parse texts; None becomes null. A time without a zone is in UTC."""
    import pyarrow as arrow
    import pyarrow.types as kinds

    if kinds.is_time(kind) or kinds.is_duration(kind):  # Arrow cannot parse these
        read = _time_of_day if kinds.is_time(kind) else _duration
        return arrow.array([None if one is None else read(one) for one in values], kind)
    texts = arrow.array(values, arrow.string())
    if kinds.is_timestamp(kind) and kind.tz is not None:
        try:
            return texts.cast(kind)
        except arrow.ArrowInvalid:
            return texts.cast(arrow.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def _time_of_day(text: str) -> Any:
    """Return the `datetime.time` of a text in ISO 8601. Raises ValueError."""
    return msgspec.convert(f"1970-01-01T{text}", datetime).time()


def _duration(text: str) -> timedelta:
    """Return the duration of a text in ISO 8601. Raises ValueError."""
    return msgspec.convert(text, timedelta)
