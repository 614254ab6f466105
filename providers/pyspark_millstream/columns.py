"""Messages to Arrow batches: a row for each item. Pure.

Without a schema of the user's the rows are `key`, `payload` (the item as MessagePack), `headers`,
`token`, `time`. With one, a column is the field of that name in the item, which must be a map; a
column with one of those names and an underscore before it is that of the message. A field that an
item lacks is null; what the sink wrote as text (dates, decimals, times without a zone) is read as
such again.
Invariants: rows stand in the order of the messages and of the items in them; a value that does not
fit its column is an error that names the column, the stream's key and the token; nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.streams.rewinding.target import ReadMessage

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema

__all__ = ["PLAIN", "Columns", "cut"]

PLAIN = ["key", "payload", "headers", "token", "time"]
"""The columns without a schema of the user's."""
SHOWN_CHARS = 60

_decode = msgspec.msgpack.Decoder().decode
OfMessage = Callable[[ReadMessage, int], Any]


def _token(message: ReadMessage, index: int) -> str:
    return str(message.token._replace(index=index))


def _time(message: ReadMessage, index: int) -> datetime:
    return datetime.fromtimestamp(message.enqueued_s, UTC)


OF_MESSAGE: Mapping[str, OfMessage] = {
    "key": lambda message, index: message.key,
    "payload": lambda message, index: bytes(message.items[index]),
    "headers": lambda message, index: list((message.headers or {}).items()),
    "token": _token,
    "time": _time,
}


class Columns:
    """Makes batches of one schema.

    Args:
        schema: of the batches.
        is_plain: it has the columns `PLAIN`, not the user's own.
    """

    def __init__(self, schema: Schema, *, is_plain: bool) -> None:
        self._schema = schema
        self._of_message: dict[str, OfMessage] = {}
        self._of_item: list[str] = []
        for name in schema.names:
            own = name if is_plain else name.removeprefix("_")
            if own in OF_MESSAGE and (is_plain or name.startswith("_")):
                self._of_message[name] = OF_MESSAGE[own]
            else:
                self._of_item.append(name)

    def batch(self, messages: Sequence[ReadMessage]) -> RecordBatch:
        """A row for each item. Raises ValueError: an item that does not fit."""
        from pyarrow import RecordBatch

        places = [(one, index) for one in messages for index in range(len(one.items))]
        values = {
            name: [value(one, index) for one, index in places]
            for name, value in self._of_message.items()
        }
        if self._of_item:
            items = [_item_of(one, index) for one, index in places]
            values.update({name: [item.get(name) for item in items] for name in self._of_item})
        arrays = [
            _array(values[field.name], field.name, field.type, places) for field in self._schema
        ]
        return RecordBatch.from_arrays(arrays, schema=self._schema)


def _item_of(message: ReadMessage, index: int) -> Mapping[str, Any]:
    try:
        item = _decode(message.items[index])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{_where(message, index)} cannot be decoded: {error}") from None
    if not isinstance(item, dict):
        kind = type(item).__name__
        raise ValueError(
            f"{_where(message, index)} is {kind}, and not a map: read without a schema, as key, "
            "payload, headers, token, time"
        )
    return item


def _where(message: ReadMessage, index: int) -> str:
    return f"the item of stream {message.key!r} at {_token(message, index)}"


def _array(
    values: list[Any], name: str, kind: DataType, places: Sequence[tuple[ReadMessage, int]]
) -> Array:
    """A column. Raises ValueError naming the first value that does not fit."""
    import pyarrow as arrow

    try:
        return _made(values, kind)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        for value, (message, index) in zip(values, places, strict=True):
            try:
                _made([value], kind)
            except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                text = repr(value)[:SHOWN_CHARS]
                raise ValueError(
                    f"column {name!r} is {kind}, and {_where(message, index)} has {text}: "
                    f"{str(error)[:200]}"
                ) from None
        raise


def _made(values: list[Any], kind: DataType) -> Array:
    """An array of a type; of text, what the text says."""
    import pyarrow as arrow
    import pyarrow.types as kinds

    if kinds.is_map(kind):
        values = [list(one.items()) if isinstance(one, dict) else one for one in values]
    elif kinds.is_string(kind):
        if any(one is not None and type(one) is not str for one in values):
            raise TypeError("it is no text")
    elif any(type(one) is str for one in values) and not kinds.is_nested(kind):
        return _read_texts(arrow.array(values, arrow.string()), kind)
    return arrow.array(values, kind)


def _read_texts(texts: Array, kind: DataType) -> Array:
    """What texts say. A time without a zone, where one is wanted, is one of UTC."""
    import pyarrow as arrow
    import pyarrow.types as kinds

    if kinds.is_timestamp(kind) and kind.tz is not None:
        try:
            return texts.cast(kind)
        except arrow.ArrowInvalid:
            return texts.cast(arrow.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def cut(messages: Sequence[ReadMessage], rows_max: int) -> Iterator[Sequence[ReadMessage]]:
    """Messages in parts of about so many rows, in order; a message is not cut."""
    part: list[ReadMessage] = []
    rows = 0
    for message in messages:
        part.append(message)
        rows += len(message.items)
        if rows >= rows_max:
            yield part
            part, rows = [], 0
    if part:
        yield part
